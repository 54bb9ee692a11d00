"""How a worker process is told to stop, and that it does stop: SIGTERM and SIGINT, with a limit that nothing outlasts.

What is in the way of an orderly end (a server out of reach, a pool that does not close, a hung event loop) can't be
listed, so a thread of its own ends the process when its time is over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from threading import Thread, Timer
from types import FrameType

import structlog

from activities.draining import Draining

log = structlog.get_logger(__name__)

_MARGIN = timedelta(seconds=1.5)
"""What an orderly end may take beyond the grace."""

_TO_SAY_S = 0.5


class StopSignals:
    """Takes the signals of this process, for the task that makes it: a worker that starts, works and drains.

    The first one begins to drain; one that comes before `ready` also cancels the start. A second one ends the process
    at once. However draining begins, also by a start that fails halfway, the process ends in time.
    """

    def __init__(self, draining: Draining, grace: timedelta) -> None:
        self._draining, self._limit_s = draining, (grace + _MARGIN).total_seconds()
        self._loop, self._start = asyncio.get_running_loop(), asyncio.current_task()
        self._told = self._limited = False
        draining.on_begin = self._limit
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take)

    def ready(self) -> None:
        """The start is over: from now on a signal cancels nothing."""
        self._start = None

    def _limit(self) -> None:
        """From now on the process ends in time, whatever is in the way."""
        if not self._limited:
            self._limited = True
            limit = Timer(self._limit_s, self._end)  # waits as `sleep` can't, where the machine's clock is shifted
            limit.daemon = True
            limit.start()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        if self._told:
            os._exit(128 + number)
        self._told = True
        self._limit()
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._draining.begin()
        if self._start is not None:
            self._start.cancel()

    def _end(self) -> None:
        saying = Thread(target=self._say, daemon=True)  # standard error may be in the way as well
        saying.start()
        saying.join(_TO_SAY_S)
        os._exit(0 if self._told else 1)

    def _say(self) -> None:
        left = ", ".join(self._draining.left) or "its connections"
        log.warning("draining took too long: what is left ends with the process", left=left, limit_s=self._limit_s)
        sys.stderr.flush()
