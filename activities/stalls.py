"""Whether this process has been stopped: what it was given meanwhile may be older than it looks.

Temporal stamps when it hands a task to an open poll. A process that is stopped then (SIGSTOP, a hung event loop) begins
the task when it goes on, with all of its time left by its own clock. No wall clock can tell, as clocks differ; a beat
of the event loop that comes too late can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from activities.clock import uptime

_BEAT_S = 0.2
_LATE_S = 1.0
"""A beat that is later than that is a stop, and no busy machine."""

_AFTER_S = 2.0
"""For so long after a stop a task that begins may have been given to the process during it."""


class StallDetector:
    """The beat of a process's event loop. `clock`: in seconds, and never set."""

    def __init__(self, clock: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._beat, self._stopped_s, self._until = clock(), 0.0, float("-inf")

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT_S)

    def beat(self) -> None:
        """Note that the process is at work."""
        now = self._clock()
        if (late := now - self._beat - _BEAT_S) > _LATE_S:
            self._stopped_s, self._until = late, now + _AFTER_S
        self._beat = now

    def age_s(self) -> float:
        """How long ago, at most, a task that begins now was given to this process."""
        self.beat()
        return self._stopped_s if self._clock() < self._until else 0.0
