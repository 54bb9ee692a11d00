"""Draining: a worker that was told to stop begins nothing more, and lets go of the calls that take too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

_TO_RECORD = timedelta(seconds=2)
"""Kept back from the grace, for what became of the calls to be recorded."""


class LetGo(Exception):
    """A call was let go, as the worker ends; whether it had its effect is not known."""


class Draining:
    """The end of a worker, which may not have come yet.

    Attributes:
        begun: Set from when on no task is claimed, and no run and no call begins.
        on_begin: Called when it begins, whoever begins it.
        left: Names of the parts that are still to end.
        to_record_s: Time between the end of the last call and the end of the grace.
    """

    def __init__(self, grace: timedelta) -> None:
        self.begun = asyncio.Event()
        self.on_begin: Callable[[], None] = lambda: None
        self.left: list[str] = []
        self.to_record_s = min(_TO_RECORD, grace / 2).total_seconds()
        self._calls_within_s = grace.total_seconds() - self.to_record_s
        self._calls: set[asyncio.Timeout] = set()

    def begin(self) -> None:
        """Begin to drain; once it has begun, this changes nothing."""
        if self.begun.is_set():
            return
        self.begun.set()
        self.on_begin()
        end = asyncio.get_running_loop().time() + self._calls_within_s
        for call in self._calls:
            call.reschedule(end)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """A call, which begins before draining does.

        Raises:
            LetGo: It took longer than draining leaves it.
        """
        timeout = asyncio.timeout(None)
        try:
            async with timeout:
                self._calls.add(timeout)
                yield
        except TimeoutError as error:
            if timeout.expired():
                raise LetGo from error
            raise
        finally:
            self._calls.discard(timeout)
