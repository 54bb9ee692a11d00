"""The writes at a step's boundaries, and what goes with them: the reservation kept, a late answer, a service's breaker.

A write is repeated by itself while the store does not answer, never by repeating the call before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Literal, assert_never

from activities.clock import uptime
from activities.reservations import Reservation, Reservations
from domain.attempts import AttemptEnd, BeginStep, StepOutcome, StepWork, WriteResult
from domain.faults import DEFINITION_ERROR, KEY_FORGOTTEN, Unreachable
from domain.messages import Completed, Failed, GaveUp, Outcome, Overtaken, StoodDown, TimedOut
from store.breakers import CircuitBreakers
from store.claims import Hold
from store.state_store import StateStore

_TAIL_S, _BREAKER_S = 2.0, 7.0
"""What is written behind a boundary must not use up the time of the activity. A breaker that closes lets all tasks go
that wait for it, in one transaction."""

_CAME_LATE = frozenset({AttemptEnd.DEADLINE_PASSED, AttemptEnd.SUPERSEDED, AttemptEnd.UNDO_REQUESTED})
"""How a boundary ends whose answer came too late to count."""


class Boundaries:
    """The boundaries of the attempts of one worker, forward and undo."""

    def __init__(self, store: StateStore, breakers: CircuitBreakers, reservations: Reservations) -> None:
        self._store, self._breakers, self._reservations = store, breakers, reservations

    async def advance(
        self, hold: Hold, given: StepWork | StepOutcome, begin: BeginStep | None, done: Completed | None = None
    ) -> WriteResult:
        """Write a boundary, and keep what it grants for the call to come."""
        report, reservation = await self.reserve(hold, given, begin, done)
        if begin is not None and reservation is not None:
            self._reservations.put(hold.run_id, begin.step, given.undo, reservation)
        return report

    async def reserve(
        self, hold: Hold, given: StepWork | StepOutcome, begin: BeginStep | None, done: Completed | None = None
    ) -> tuple[WriteResult, Reservation | None]:
        """Write a boundary. The time that the store took to answer is gone from what it grants."""
        name, calls = (given.step, done.calls) if done else (None, None)
        sent_at = uptime()
        if given.undo:
            report = await self._store.undo.advance(hold, done=name, calls=calls, begin=begin)
        else:
            result = done.result if done else None
            report = await self._store.forward.advance(hold, done=name, result=result, calls=calls, begin=begin)
        granted = report.grant if begin is not None else None
        return report, Reservation(granted, sent_at + granted.within_s) if granted else None

    async def write(self, hold: Hold, written: StepOutcome) -> WriteResult:
        """Write what came of a call; then, best effort, keep it if it came too late, and tell the service's breaker."""
        outcome = written.outcome
        report = await self._boundary(hold, written)
        if report.end in _CAME_LATE and _is_answer(outcome):
            async with _best_effort(_TAIL_S):
                answer = outcome.model_dump(mode="json")
                await self._store.steps.note_late(hold.task_id, written.step, answer, actor=hold.locked_by)
        if written.service is not None:
            async with _best_effort(_BREAKER_S):
                await self._tell_breaker(written.service, hold, written.step, outcome)
        return report

    async def _boundary(self, hold: Hold, written: StepOutcome) -> WriteResult:
        """One guarded statement, whatever came of the call."""
        match outcome := written.outcome:
            case Completed():
                self._reservations.take(hold.run_id, written.step, written.undo)
                return await self.advance(hold, written, written.then, done=outcome)
            case Failed():
                return await self._fail(hold, written, outcome)
            case GaveUp():
                return await self._store.steps.give_up(
                    hold,
                    written.step,
                    outcome.cause,
                    unknown=outcome.unknown,
                    sent=outcome.sent,
                    pause_s=outcome.retry_after_s,
                )
            case TimedOut():
                return WriteResult(end=AttemptEnd.DEADLINE_PASSED, cause=outcome.cause)
            case Overtaken():
                return WriteResult(end=AttemptEnd.SUPERSEDED, cause=outcome.cause)
            case StoodDown():
                delay = timedelta(seconds=outcome.retry_after_s)
                return await self._store.steps.release(
                    hold, outcome.cause, step=written.step, sent=outcome.sent, delay=delay, lacking=outcome.lacking
                )
        assert_never(outcome)

    async def _fail(self, hold: Hold, written: StepOutcome, outcome: Failed) -> WriteResult:
        error = {"step": written.step, "code": outcome.code, "message": outcome.message}
        if written.undo:
            return await self._store.undo.fail(hold, written.step, error)
        then: Literal["undo", "error"] = "error" if outcome.code == KEY_FORGOTTEN else written.on_refused
        return await self._store.forward.fail(hold, written.step, error, unknown=outcome.unknown_before, then=then)

    async def _tell_breaker(self, service: str, hold: Hold, step: str, outcome: Outcome) -> None:
        if _is_answer(outcome):
            await self._breakers.answered(service, hold.task_id)
        elif cause := _failure(outcome):
            await self._breakers.failed(service, hold.task_id, cause, report=f"{hold.locked_by}:{step}")


@asynccontextmanager
async def _best_effort(within_s: float) -> AsyncIterator[None]:
    """What is done here may fail for want of the store or of time."""
    with suppress(Unreachable, TimeoutError):
        async with asyncio.timeout(within_s):
            yield


def _failure(outcome: Outcome) -> str:
    """What its breaker counts: why a service gave no answer; empty if it was not called."""
    match outcome:
        case GaveUp() | TimedOut(called=True) | StoodDown(unreachable=True):
            return outcome.cause
        case _:
            return ""


def _is_answer(outcome: Outcome) -> bool:
    """Whether the service itself said it; a refusal by its fence is an answer too."""
    if isinstance(outcome, Failed):
        return outcome.code not in (KEY_FORGOTTEN, DEFINITION_ERROR)  # which is not the service's word
    return isinstance(outcome, Completed) or (isinstance(outcome, Overtaken) and outcome.answered)
