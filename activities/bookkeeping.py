"""The Scheduler's bookkeeping: activities that write boundaries, and that call an inline step's Agent between them.

They run as local activities. All are safe to repeat: a second run finds the recorded result, or that the task is no
longer its own. A boundary write is repeated by itself, never by repeating the call before it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Literal, assert_never

from temporalio import activity
from temporalio.service import RPCError

from activities.agent import Agents, AnswersLater
from activities.clock import uptime
from activities.reservations import Reservation, Reservations
from domain.attempts import AttemptEnd, BeginStep, Results, ResultsRequest, StepWork, WriteResult
from domain.faults import DEFINITION_ERROR, KEY_FORGOTTEN, Unreachable
from domain.ids import actor, attempt_id
from domain.messages import Completed, GaveUp, Outcome, Overtaken, Refused, StoodDown, TimedOut
from domain.text import clean
from domain.undo_requests import SignalRef, UndoRequest, UndoVerdict
from store.breakers import CircuitBreakers
from store.claims import Hold
from store.inbox import InboxStore
from store.state_store import StateStore

_TAIL_S, _BREAKER_S = 2.0, 7.0
"""What is written behind a boundary must not use up the time of the activity. A breaker that closes lets all tasks go
that wait for it, in one transaction."""

_RPC = timedelta(seconds=2)
_SENDER_S = 5.0
"""A request for undo waits no longer for who sent it to be looked up in a long history."""

_SMALL = 16_384
"""A longer result is not part of what an inline step returns, as many may return at once: the run fetches it."""

_CAME_LATE = frozenset({AttemptEnd.DEADLINE_PASSED, AttemptEnd.SUPERSEDED, AttemptEnd.UNDO_REQUESTED})
"""How a boundary ends whose answer came too late to count."""


class Bookkeeping:
    """Writes of an attempt, guarded by its hold."""

    def __init__(
        self,
        store: StateStore,
        inbox: InboxStore,
        breakers: CircuitBreakers,
        reservations: Reservations,
        agents: Agents,
    ) -> None:
        self._store, self._inbox, self._breakers = store, inbox, breakers
        self._reservations, self._agents = reservations, agents
        self._living: dict[tuple[str, str, str, bool], asyncio.Future[WriteResult]] = {}

    @activity.defn
    async def perform(self, work: StepWork) -> WriteResult:
        """Do an inline step: call its Agent under a reservation, and write the boundary behind it."""
        return await self._joined("perform", work, self._perform)

    @activity.defn
    async def record(self, work: StepWork) -> WriteResult:
        """Begin a step that has no outcome yet, or write the boundary behind the outcome of a queued one."""
        return await self._joined("begin" if work.outcome is None else "record", work, self._record)

    @activity.defn
    async def results(self, wanted: ResultsRequest) -> Results:
        """Recorded results, as many as one message should carry."""
        return Results(results=await self._store.steps.results(wanted.task_id, wanted.steps))

    async def close(self) -> None:
        """End what has lost its activity and is still at work when the worker has stopped."""
        living = list(self._living.values())
        for work in living:
            work.cancel()
        await asyncio.gather(*living, return_exceptions=True)

    async def _joined(
        self, name: str, work: StepWork, do: Callable[[Hold, StepWork], Awaitable[WriteResult]]
    ) -> WriteResult:
        """Do it, or wait for its twin: a workflow task that fails in mid-stretch runs all its activities again, while
        the first ones are alive. What was begun goes on although its activity is cancelled.
        """
        hold, began = _hold(work), uptime()
        key = (hold.run_id, name, work.step, work.undo)
        if key not in self._living:
            self._living[key] = asyncio.ensure_future(do(hold, work))
            self._living[key].add_done_callback(lambda _: self._living.pop(key))
        done = await asyncio.shield(self._living[key])
        report = self._with_grant(hold, work.begin if name == "begin" else work.then, began, work.undo, done)
        return report if report.result is None or len(json.dumps(report.result)) <= _SMALL else _without_result(report)

    async def _perform(self, hold: Hold, work: StepWork) -> WriteResult:
        reservation = self._reservations.take(hold.run_id, work.step, work.undo)
        if reservation is None:
            report = await self._advance(hold, work, work.begin)
            reservation = self._reservations.take(hold.run_id, work.step, work.undo)
            if reservation is None:
                return report
        if work.request is None:
            raise ValueError(f"step {work.step} is to be performed without a request")
        request = work.request.granted(reservation.grant, hold.run_id)
        try:
            outcome = await self._agents.carry_out(request, reservation.deadline)
        except AnswersLater:
            outcome = GaveUp(cause=f"the service answers later, for which step {work.step} does not wait")
        return await self._write(hold, work, outcome)

    async def _record(self, hold: Hold, work: StepWork) -> WriteResult:
        if work.outcome is not None:
            return _without_result(await self._write(hold, work, work.outcome))  # the run has it from the Agent
        if self._reservations.peek(hold.run_id, work.step, work.undo) is not None:
            return WriteResult()
        report = await self._advance(hold, work, work.begin)
        if report.grant is None or work.undo:
            return report
        return report.model_copy(update={"answer": (await self.find_answer(work)).answer})

    @activity.defn
    async def find_answer(self, work: StepWork) -> WriteResult:
        """Look for an answer that came later, while the activity that it should complete still waits."""
        return WriteResult(answer=await self._inbox.find(work.request.keys[-1]) if work.request else None)

    @activity.defn
    async def finish_undo(self, work: StepWork) -> WriteResult:
        """Compensated, for a log that has nothing (left) to undo."""
        return await self._store.undo.advance(_hold(work))

    @activity.defn
    async def release(self, work: StepWork) -> WriteResult:
        """Give the row back, for a run that was told to stop."""
        hold = _hold(work)
        return await self._store.steps.release(
            hold, "the run was cancelled", step=work.step or None, sent=None, delay=timedelta(0)
        )

    @activity.defn
    async def request_undo(self, request: UndoRequest) -> UndoVerdict:
        """Ask for the undo of a task; asking twice changes nothing."""
        if request.heard and (sender := await _sender(request.heard)):
            unnamed = request.requester == actor("signal", "")
            by = actor("signal", sender) if unnamed else request.requester
            request = request.model_copy(update={"requester": by, "sender": sender})
        return await self._store.requests.undo(request)

    async def _advance(
        self, hold: Hold, work: StepWork, begin: BeginStep | None, done: Completed | None = None
    ) -> WriteResult:
        """Write a boundary, and keep what it grants: the time that the store took to answer is gone."""
        name, calls = (work.step, done.calls) if done else (None, None)
        sent_at = uptime()
        if work.undo:
            report = await self._store.undo.advance(hold, done=name, calls=calls, begin=begin)
        else:
            result = done.result if done else None
            report = await self._store.forward.advance(hold, done=name, result=result, calls=calls, begin=begin)
        if begin is not None and report.grant is not None:
            reservation = Reservation(report.grant, sent_at + report.grant.within_s)
            self._reservations.put(hold.run_id, begin.step, work.undo, reservation)
        return report

    async def _write(self, hold: Hold, work: StepWork, outcome: Outcome) -> WriteResult:
        """Write what came of a call; then, best effort, keep it if it came too late, and tell the service's breaker."""
        report = await self._boundary(hold, work, outcome)
        if report.end in _CAME_LATE and _is_answer(outcome):
            async with _best_effort(_TAIL_S):
                answer = outcome.model_dump(mode="json")
                await self._store.steps.note_late(hold.task_id, work.step, answer, actor=hold.locked_by)
        if work.request is not None:
            async with _best_effort(_BREAKER_S):
                await self._tell_breaker(work.request.service, hold, work.step, outcome)
        return report

    async def _tell_breaker(self, service: str, hold: Hold, step: str, outcome: Outcome) -> None:
        if _is_answer(outcome):
            await self._breakers.answered(service, hold.task_id)
        elif cause := _failure(outcome):
            await self._breakers.failed(service, hold.task_id, cause, report=f"{hold.locked_by}:{step}")

    async def _boundary(self, hold: Hold, work: StepWork, outcome: Outcome) -> WriteResult:
        """One guarded statement, whatever came of the call."""
        match outcome:
            case Completed():
                self._reservations.take(hold.run_id, work.step, work.undo)
                return await self._advance(hold, work, work.then, done=outcome)
            case Refused():
                return await self._refuse(hold, work, outcome)
            case GaveUp():
                return await self._store.steps.give_up(
                    hold,
                    work.step,
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
                    hold, outcome.cause, step=work.step, sent=outcome.sent, delay=delay, lacking=outcome.lacking
                )
        assert_never(outcome)

    async def _refuse(self, hold: Hold, work: StepWork, outcome: Refused) -> WriteResult:
        error = {"step": work.step, "code": outcome.code, "message": outcome.message}
        if work.undo:
            return await self._store.undo.fail(hold, work.step, error)
        then: Literal["undo", "error"] = "error" if outcome.code == KEY_FORGOTTEN else work.on_refused
        return await self._store.forward.fail(hold, work.step, error, unknown=outcome.unknown_before, then=then)

    def _with_grant(
        self, hold: Hold, begun: BeginStep | None, began: float, undo: bool, report: WriteResult
    ) -> WriteResult:
        """What is held for a queued step that was begun, by this activity or its twin, and what is left of it now."""
        if begun is None or not begun.queued or report.end is not None:
            return report.model_copy(update={"grant": None})
        held = self._reservations.peek(hold.run_id, begun.step, undo)
        gone = report.grant and report.grant.model_copy(update={"within_s": 0.0})  # so late that it was forgotten
        return report.model_copy(update={"grant": held.as_grant(began) if held else gone})


async def _sender(heard: SignalRef) -> str:
    """Who sent a signal, by his own word to Temporal; empty if Temporal does not say now."""
    handle = activity.client().get_workflow_handle(heard.workflow_id, run_id=heard.run_id)
    number = 0
    with suppress(RPCError, TimeoutError):
        async with asyncio.timeout(_SENDER_S):
            async for event in handle.fetch_history_events(rpc_timeout=_RPC):
                signal = event.workflow_execution_signaled_event_attributes
                number += signal.signal_name == "compensate"
                if number == heard.number:
                    return clean(signal.identity)[:200]
    return ""


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
    if isinstance(outcome, Refused):
        return outcome.code not in (KEY_FORGOTTEN, DEFINITION_ERROR)  # which is not the service's word
    return isinstance(outcome, Completed) or (isinstance(outcome, Overtaken) and outcome.answered)


def _without_result(report: WriteResult) -> WriteResult:
    return report.model_copy(update={"result": None})


def _hold(work: StepWork) -> Hold:
    info = activity.info()
    locked_by = str(info.workflow_id)
    if locked_by != attempt_id(str(info.workflow_type), work.task_id, work.epoch):
        raise ValueError(f"workflow {locked_by} is not attempt {work.epoch} of task {work.task_id}")
    return Hold(work.task_id, locked_by, str(info.workflow_run_id), work.nonce)
