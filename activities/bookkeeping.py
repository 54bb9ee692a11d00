"""The Scheduler's bookkeeping: activities that write boundaries, and that call an inline step's Agent between them.

They run as local activities. All are safe to repeat: a second run finds the recorded result, or that the task is no
longer its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from temporalio import activity
from temporalio.common import RawValue

from activities.agent import AnswersLater
from activities.boundaries import Boundaries
from activities.call_loop import Agents
from activities.clock import uptime
from activities.reservations import Reservations
from activities.signal_senders import sender_of
from domain.attempts import (
    AttemptRef,
    BeginStep,
    Results,
    ResultsRequest,
    StepOutcome,
    StepWork,
    WriteResult,
)
from domain.ids import actor, attempt_id
from domain.messages import GaveUp
from domain.undo_requests import UndoRequest, UndoVerdict
from store.breakers import CircuitBreakers
from store.claims import Hold
from store.inbox import InboxStore
from store.state_store import StateStore

_SMALL = 16_384
"""A longer result is not part of what an inline step returns, as many may return at once: the run fetches it."""

Given = TypeVar("Given", StepWork, StepOutcome)


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
        self._store, self._inbox, self._reservations, self._agents = store, inbox, reservations, agents
        self._boundaries = Boundaries(store, breakers, reservations)
        self._living: dict[tuple[str, str, str, bool], asyncio.Future[WriteResult]] = {}

    @activity.defn(dynamic=True)
    async def inline_step(self, args: Sequence[RawValue]) -> WriteResult:
        """Do an inline step: call its Agent under a reservation, and write the boundary behind it.

        It is dynamic, so that the history shows it by the step's own action.
        """
        work = activity.payload_converter().from_payload(args[0].payload, StepWork)
        return await self._joined("call", work, self._call, work.then)

    @activity.defn
    async def begin_step(self, work: StepWork) -> WriteResult:
        """Begin a queued step. It may be that its answer has come before."""
        return await self._joined("begin", work, self._begin, work.begin)

    @activity.defn
    async def write_outcome(self, outcome: StepOutcome) -> WriteResult:
        """Write the boundary behind the outcome of a queued step."""
        return await self._joined("write", outcome, self._write_queued, outcome.then)

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
        self, name: str, given: Given, do: Callable[[Hold, Given], Awaitable[WriteResult]], begun: BeginStep | None
    ) -> WriteResult:
        """Do it, or wait for its twin: a workflow task that fails in mid-stretch runs all its activities again, while
        the first ones are alive. What was begun goes on although its activity is cancelled.
        """
        hold, began = _hold(given), uptime()
        key = (hold.run_id, name, given.step, given.undo)
        if key not in self._living:
            self._living[key] = asyncio.ensure_future(do(hold, given))
            self._living[key].add_done_callback(lambda _: self._living.pop(key))
        done = await asyncio.shield(self._living[key])
        report = self._with_grant(hold, begun, began, given.undo, done)
        return report if report.result is None or len(json.dumps(report.result)) <= _SMALL else _without_result(report)

    async def _call(self, hold: Hold, work: StepWork) -> WriteResult:
        reservation = self._reservations.take(hold.run_id, work.step, work.undo)
        if reservation is None:
            report, reservation = await self._boundaries.reserve(hold, work, work.begin)
            if reservation is None:
                return report
        request = work.request.granted(reservation.grant, hold.run_id)
        try:
            outcome = await self._agents.carry_out(request, reservation.deadline)
        except AnswersLater:
            outcome = GaveUp(cause=f"the service answers later, for which step {work.step} does not wait")
        return await self._boundaries.write(hold, work.came_to(outcome))

    async def _begin(self, hold: Hold, work: StepWork) -> WriteResult:
        if self._reservations.peek(hold.run_id, work.step, work.undo) is not None:
            return WriteResult()
        report = await self._boundaries.advance(hold, work, work.begin)
        if report.grant is None or work.undo:
            return report
        return report.model_copy(update={"answer": (await self.find_answer(work)).answer})

    async def _write_queued(self, hold: Hold, outcome: StepOutcome) -> WriteResult:
        return _without_result(await self._boundaries.write(hold, outcome))  # the run has it from the Agent

    @activity.defn
    async def find_answer(self, work: StepWork) -> WriteResult:
        """Look for an answer that came later, while the activity that it should complete still waits."""
        return WriteResult(answer=await self._inbox.find(work.request.keys[-1]))

    @activity.defn
    async def finish_undo(self, attempt: AttemptRef) -> WriteResult:
        """Compensated, for a log that has nothing (left) to undo."""
        return await self._store.undo.advance(_hold(attempt))

    @activity.defn
    async def release(self, attempt: AttemptRef) -> WriteResult:
        """Give the row back, for a run that was cancelled."""
        return await self._store.steps.release(
            _hold(attempt), "the run was cancelled", step=None, sent=None, delay=timedelta(0)
        )

    @activity.defn
    async def request_undo(self, request: UndoRequest) -> UndoVerdict:
        """Ask for the undo of a task; asking twice changes nothing."""
        if request.heard and (sender := await sender_of(request.heard)):
            unnamed = request.requester == actor("signal", "")
            by = actor("signal", sender) if unnamed else request.requester
            request = request.model_copy(update={"requester": by, "sender": sender})
        return await self._store.requests.undo(request)

    def _with_grant(
        self, hold: Hold, begun: BeginStep | None, began: float, undo: bool, report: WriteResult
    ) -> WriteResult:
        """What is held for a queued step that was begun, by this activity or its twin, and what is left of it now."""
        if begun is None or not begun.queued or report.end is not None:
            return report.model_copy(update={"grant": None})
        held = self._reservations.peek(hold.run_id, begun.step, undo)
        gone = report.grant and report.grant.model_copy(update={"within_s": 0.0})  # so late that it was forgotten
        return report.model_copy(update={"grant": held.as_grant(began) if held else gone})


def _without_result(report: WriteResult) -> WriteResult:
    return report.model_copy(update={"result": None})


def _hold(attempt: AttemptRef) -> Hold:
    info = activity.info()
    locked_by = str(info.workflow_id)
    if locked_by != attempt_id(str(info.workflow_type), attempt.task_id, attempt.epoch):
        raise ValueError(f"workflow {locked_by} is not attempt {attempt.epoch} of task {attempt.task_id}")
    return Hold(attempt.task_id, locked_by, str(info.workflow_run_id), attempt.nonce)
