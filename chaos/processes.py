"""The parts of a testbed that can be hurt: servers and workers. Nobody starts a dead one again but the run itself."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import psutil  # type: ignore[import-untyped]

from chaos.fork_server import Child, ForkServer
from devstack.processes.managed import ManagedProcess
from devstack.processes.records import EmbeddedServerError
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from testing.waiting import eventually

Part = EmbeddedPostgres | EmbeddedTemporal | ManagedProcess
P_co = TypeVar("P_co", bound=Part, covariant=True)


class Server(Generic[P_co]):
    """A server of the testbed. Its children are hurt with it, as a PostgreSQL is many processes."""

    def __init__(self, part: P_co) -> None:
        self.part = part
        self.seen: set[psutil.Process] = set()

    async def start(self) -> None:
        """Start it, again if need be: what a killed server leaves behind may take a moment to go."""
        async with asyncio.timeout(120):
            while True:
                try:
                    await self._start()
                    break
                except EmbeddedServerError:
                    await asyncio.sleep(0.1)
        self._processes()

    async def _start(self) -> None:
        if isinstance(self.part, ManagedProcess):
            self.part.start()  # it would die with the thread that starts it
            await asyncio.to_thread(self.part.wait_ready)
        else:
            await asyncio.to_thread(self.part.start)

    async def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        if found := self._processes():
            found[0].kill()
            await asyncio.to_thread(psutil.wait_procs, found, 10)
            self.part.is_alive()  # reaps it

    async def restart(self) -> None:
        """Kill it and start it."""
        await self.kill()
        await self.start()

    async def stop(self) -> None:
        """Stop it in order, and delete what it kept."""
        await asyncio.to_thread(self.part.stop if isinstance(self.part, ManagedProcess) else self.part.delete_data)

    def _processes(self) -> list[psutil.Process]:
        """It, and its children."""
        if self.part.pid is None:
            return []
        main = psutil.Process(self.part.pid)
        found = [main, *main.children(recursive=True)]
        self.seen.update(found)
        return found


class Worker:
    """A worker process; the one of the same number follows it when it has died."""

    def __init__(self, number: int, fork_server: ForkServer, environment: Mapping[str, str], folder: Path) -> None:
        self._fork_server, self._environment = fork_server, environment
        self._log, self._ready = folder / f"worker-{number}.log", folder / f"worker-{number}.ready"
        self._child: Child | None = None

    @property
    def child(self) -> Child:
        """The process that was started last."""
        assert self._child is not None, "it was never started"
        return self._child

    @property
    def is_alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.is_alive

    async def start(self, *, ready: bool = True, **more: str) -> None:
        """Start a process, unless one runs, and wait until it is ready. `more`: variables, such as `KILL_AT`."""
        if self.is_alive:
            return
        self._ready.unlink(missing_ok=True)
        environment = {**self._environment, "SAS_HEALTH_FILE": str(self._ready), **more}
        self._child = await self._fork_server.start(environment, self._log)
        if ready:
            await eventually(self._is_ready)

    async def _is_ready(self) -> bool:
        return self._ready.exists() or not self.is_alive

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.is_alive:
            self.child.send(signal.SIGKILL)
            await self.child.ended()

    def pause(self) -> None:
        """SIGSTOP."""
        self.child.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.child.send(signal.SIGCONT)

    async def terminate(self) -> int:
        """SIGTERM, as a deployment ends it; its exit code."""
        self.child.send(signal.SIGTERM)
        return await self.child.ended()
