"""The local activities of a run: writes at its boundaries, and the calls of inline steps."""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

from temporalio import workflow
from temporalio.exceptions import FailureError, is_cancelled_exception

from domain.attempts import AttemptEnd, AttemptRef, ResultsRequest, StepOutcome, StepWork, WriteResult
from workflows.options import LocalOptions, write_options

T = TypeVar("T")


class Ended(Exception):
    """The attempt is over: not by a bug, but because the store said so."""

    def __init__(self, report: WriteResult) -> None:
        super().__init__(report.cause)
        self.report = report


class Writes:
    """What a run writes, or has called inline. Each raises `Ended` if it can't be known to be done."""

    def __init__(self) -> None:
        self._in_progress, self._ending = 0, False

    async def write(self, name: str, given: StepWork | StepOutcome | AttemptRef) -> WriteResult:
        """Write a boundary; with the action of an inline step as its name, call its Agent before."""
        began = workflow.now()
        report = await self.local(name, given, WriteResult, write_options(given))
        return report.model_copy(update={"grant": report.grant and report.grant.begun_at(began)})

    async def local(
        self, name: str, given: StepWork | StepOutcome | AttemptRef | ResultsRequest, gives: type[T],
        options: LocalOptions,
    ) -> T:  # fmt: skip
        """Run a local activity."""
        if self._ending:
            raise Ended(WriteResult(end=AttemptEnd.SUPERSEDED, cause="the attempt is ending"))
        self._in_progress += 1
        try:
            return cast(T, await workflow.execute_local_activity(name, given, result_type=gives, **options))
        except FailureError as error:  # as the local activity raised it
            if is_cancelled_exception(error):
                raise
            end = WriteResult(end=AttemptEnd.NOT_RECORDED, cause=f"{name}: {error.cause or error}")
            raise Ended(end) from error
        finally:
            self._in_progress -= 1

    async def settle(self) -> bool:
        """Begin nothing more, and wait for what this worker is in the middle of; queued calls are let go.

        A run must not end in the middle of a local activity: its marker would come behind the last command. Returns
        whether the run was cancelled meanwhile.
        """
        self._ending = True
        try:
            await workflow.wait_condition(lambda: self._in_progress == 0)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: self._in_progress == 0)  # a run is cancelled once
            return True
        return False
