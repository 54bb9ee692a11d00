"""A worker with a bad habit, named by HABIT: it hangs, stops or dies where a real one could.

The habits are wrapped around the real parts here, as the kill points are in `chaos/points.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

import runtime.roles
from activities.call_loop import Agents
from chaos import worker
from runtime.settings import Settings
from store.supervision import Supervision
from testing import ROOT
from testing.settings import environment
from testing.waiting import eventually
from tests.workers import WorkerProcess


class StrangeWorker(WorkerProcess):
    """A worker process with one of `HABITS`; otherwise a `WorkerProcess`."""

    def __init__(
        self, settings: Settings, habit: str, *, roles: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        own = {"PYTHONPATH": str(ROOT), "HABIT": habit, "ROLES": roles, "KILL_AT": ""}
        self._log = settings.state_dir / f"strange-{id(self)}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.failures.strange_worker"],
                env={**os.environ, **environment(settings), **more, **own},
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    async def stopped(self) -> None:
        """Wait until it has stopped itself."""

        async def is_stopped() -> bool:
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)

        await eventually(is_stopped)


def hang() -> None:
    """Hold the event loop, with an answer in hand that is not on record, until the file UNTIL is there."""
    perform = Agents.carry_out

    async def wrapped(self: Agents, *args: Any, **kwargs: Any) -> Any:
        outcome = await perform(self, *args, **kwargs)
        while not Path(os.environ["UNTIL"]).exists():  # noqa: ASYNC240 (that is the habit)
            time.sleep(0.05)  # noqa: ASYNC251
        return outcome

    Agents.carry_out = wrapped  # type: ignore[method-assign]


def stop_with_an_answer() -> None:
    """Stop, with an answer in hand that is not on record, until somebody sends SIGCONT."""
    perform = Agents.carry_out

    async def wrapped(self: Agents, *args: Any, **kwargs: Any) -> Any:
        outcome = await perform(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGSTOP)
        return outcome

    Agents.carry_out = wrapped  # type: ignore[method-assign]


def die_after_a_page() -> None:
    """Die in a sweep, as soon as a page of it is written."""
    recover = Supervision.recover

    async def wrapped(self: Supervision, *args: Any, **kwargs: Any) -> Any:
        await recover(self, *args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    Supervision.recover = wrapped  # type: ignore[method-assign]


def stop_before_writing() -> None:
    """Stop in a sweep between reading a page and writing it, until somebody sends SIGCONT; touch WROTE behind it."""
    recover = Supervision.recover

    async def wrapped(self: Supervision, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        writing = asyncio.create_task(recover(self, *args, **kwargs))
        writing.add_done_callback(lambda _: Path(os.environ["WROTE"]).touch())
        return await asyncio.shield(writing)  # it is sent, although Temporal may have given up on the sweep meanwhile

    Supervision.recover = wrapped  # type: ignore[method-assign]


HABITS: dict[str, Callable[[], None]] = {
    h.__name__: h for h in (hang, stop_with_an_answer, die_after_a_page, stop_before_writing)
}

if __name__ == "__main__":
    runtime.roles._HEALTH_S = 0.2
    HABITS[os.environ["HABIT"]]()
    worker.main()
