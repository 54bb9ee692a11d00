"""Keeps processes running: a dead one is started again, with growing pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from devstack.processes.managed import ManagedProcess

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
HEALTHY_AFTER = 60.0
"""Seconds alive after which the next death counts as the first again."""


class Keepable(Protocol):
    """What the keeper needs: our own processes and both embedded servers have it."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def start(self) -> None:
        """Starts it."""

    def stop(self) -> None:
        """Ends it."""

    def is_alive(self) -> bool:
        """Whether it runs."""

    def log_tail(self, lines: int = ...) -> str:
        """Returns the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Restart:
    """One restart, for the log or the screen.

    Attributes:
        name: the process's name.
        deaths: how often it died in a row.
        pause: seconds that it was left dead.
        error: why this start failed; None if it runs.
        last_words: the log's last lines before the restart.
    """

    name: str
    deaths: int
    pause: float
    error: str | None
    last_words: str


@dataclass(slots=True)
class _Watch:
    process: Keepable
    started_at: float = 0.0
    deaths: int = 0
    restart_at: float | None = None


class Keeper:
    """Owns several processes. Call `tick` from a loop, from a thread that lives as long as the program.

    Args:
        processes: in the order in which they start; they stop in the opposite order.
        on_restart: is told of every restart.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        processes: Sequence[Keepable],
        on_restart: Callable[[Restart], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watches = [_Watch(process) for process in processes]
        self._on_restart = on_restart
        self._clock = clock

    def start(self) -> None:
        """Starts all in order. If one cannot be started, all are stopped and the error is raised."""
        try:
            for watch in self._watches:
                watch.process.start()
                watch.started_at = self._clock()
        except BaseException:
            self.stop()
            raise

    def tick(self) -> None:
        """Looks at each process once: notes a death, and starts again those whose pause is over."""
        for watch in self._watches:
            if watch.restart_at is not None:
                if self._clock() >= watch.restart_at:
                    self._restart(watch)
            elif not watch.process.is_alive():
                self._note_death(watch)

    def stop(self) -> None:
        """Ends all, the last started first.

        Our own processes are asked together, so that they end side by side.

        Raises:
            ExceptionGroup: some could not be stopped; the others were.
        """
        for watch in reversed(self._watches):
            if isinstance(watch.process, ManagedProcess):
                watch.process.request_stop()
        errors: list[Exception] = []
        for watch in reversed(self._watches):
            try:
                watch.process.stop()
            except (OSError, RuntimeError) as error:  # the others are stopped all the same
                errors.append(error)
        if errors:
            raise ExceptionGroup("not everything could be stopped", errors)

    def _note_death(self, watch: _Watch) -> None:
        lived = self._clock() - watch.started_at
        watch.deaths = 1 if lived >= HEALTHY_AFTER else watch.deaths + 1
        watch.restart_at = self._clock() + pause_after(watch.deaths)

    def _restart(self, watch: _Watch) -> None:
        deaths, words, error = watch.deaths, watch.process.log_tail(20), None
        watch.restart_at = None
        try:
            watch.process.start()
        except (OSError, RuntimeError) as fault:  # reported, and tried again after a longer pause
            error = str(fault)
        watch.started_at = self._clock()
        if self._on_restart is not None:
            self._on_restart(Restart(watch.process.name, deaths, pause_after(deaths), error, words))


def pause_after(deaths: int) -> float:
    """Returns the seconds to wait after so many deaths in a row: 0.5, doubling, at most 30."""
    return min(FIRST_PAUSE * 2.0 ** min(deaths - 1, 16), LONGEST_PAUSE)
