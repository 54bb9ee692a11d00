"""Real worker processes for the tests: started, paused, told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from runtime.settings import Settings
from testing import ROOT
from testing.settings import environment
from testing.waiting import PATIENCE_S, eventually


class WorkerProcess:
    """A worker in a process of its own. A paused one with the role `agents` keeps its polls open at the server and
    swallows what it is given, so a zombie that is to leave the others alone has the role `scheduler` only.

    `more`: further variables. `kill_at`: where it kills itself with SIGKILL, see `chaos/points.py`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kill_at: str = "",
        roles: str = "scheduler,agents",
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        env = {**os.environ, **environment(settings), **more, "PYTHONPATH": str(ROOT)} | {
            "KILL_AT": kill_at,
            "ROLES": roles,
        }
        self._log = settings.state_dir / f"worker-{id(self)}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "chaos.worker"], env=env, cwd=ROOT, stdout=log, stderr=log
            )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if error is not None:
            print(self._log.read_text()[-5000:])

    async def died(self) -> None:
        """Wait until it has killed itself."""
        async with asyncio.timeout(PATIENCE_S):
            code = await asyncio.to_thread(self._process.wait)
        assert code == -signal.SIGKILL, self._log.read_text()[-3000:]

    async def polls(self, client: Client, queue: str) -> None:
        """Wait until it has a poll for activities open on this task queue."""
        wanted = DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
        )

        async def open_() -> bool:
            pollers = (await client.workflow_service.describe_task_queue(wanted)).pollers
            return any(f":{self._process.pid}:" in p.identity for p in pollers)

        await eventually(open_)

    async def logged(self, text: str) -> None:
        """Wait until its log has this in it."""

        async def there() -> bool:
            return text in self._log.read_text()

        await eventually(there)

    def pause(self) -> None:
        """Stop it where it is."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(self._process.wait)

    async def stop(self) -> int:
        """Ask it to stop, and wait; its exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()
