"""The Scheduler: one workflow that interprets a task definition, forward or undo.

The workflow type is the task's name, the workflow id is the lock owner. A run that did not finish its task fails with a
typed error, so that the status column of the Temporal UI is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from definitions import registry
    from domain.attempts import AttemptEnd, RunInput, WriteResult
    from domain.ids import attempt_id
    from domain.messages import Json
    from domain.search_attributes import TASK_STATE as STATE_NAME
    from domain.states import TaskState
    from domain.undo_requests import UndoReason
    from workflows.attempt import MOST_CAUSE, Attempt
    from workflows.undo_requests import Requests, hand_on
    from workflows.writes import Ended

TASK_STATE = SearchAttributeKey.for_keyword(STATE_NAME)

_STATES = {
    AttemptEnd.PROCESSED: TaskState.PROCESSED,
    AttemptEnd.COMPENSATED: TaskState.COMPENSATED,
    AttemptEnd.UNDO_FAILED: TaskState.COMPENSATION_FAILED,
}


@workflow.defn(dynamic=True)
class Scheduler:
    """An attempt at one task. Signals: `compensate`, with a reason or without. Query: `progress`."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._requests = Requests()
        self._ending_verdicts = frozenset({"accepted", "already"})

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Json:
        """Carry out what was claimed. Returns the step table; raises a typed error if the task is not finished."""
        run = _input(args)
        if run is None:
            with suppress(ValueError):  # its workflow id names no task whose undo could be asked for
                await self._requests.hand_on()
            message = "only the dispatcher starts an attempt: submit the task with `starter.py`"
            raise ApplicationError(message, type="NotAnAttempt", non_retryable=True)
        definition = registry().find(run.definition, run.version)
        if definition is None:  # fails this workflow task only: a worker that has the definition gets the next one
            raise RuntimeError(f"this worker has no definition {run.definition} v{run.version}")
        if run.undo:
            self._ending_verdicts = frozenset({"accepted"})  # that it is being undone already is this very run
        attempt = Attempt(run, definition, self._show, self._wait_for_any)
        report, cancelled = None, False
        try:
            await (attempt.undo() if run.undo else attempt.forward())
        except Ended as end:
            report = end.report
        except asyncio.CancelledError:
            cancelled = True
        if await attempt.writes.settle() or cancelled:
            await self._answer_cancellation(attempt, undo=run.undo)
        await self._requests.hand_on()
        if report is None:
            raise asyncio.CancelledError
        return self._end(report)

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a request for undo."""
        self._requests.take(name, args)

    @workflow.query
    def progress(self) -> dict[str, str]:
        """State of each step, as this run knows it."""
        return self._states

    def _show(self, states: Mapping[str, str]) -> None:
        """Show the states of steps in the UI; costs no event."""
        self._states |= states
        rows = "\n".join(f"| {name} | {state} |" for name, state in self._states.items())
        workflow.set_current_details(f"| step | state |\n| --- | --- |\n{rows}")

    async def _wait_for_any(self, waiting: Collection[asyncio.Task[WriteResult]]) -> None:
        """Wait until some of these are done; a request for undo is answered first, and nothing begins meanwhile."""
        while not any(t.done() for t in waiting):
            await workflow.wait_condition(lambda: bool(self._requests.first) or any(t.done() for t in waiting))
            await self._answer_request()

    async def _answer_request(self) -> None:
        request = self._requests.first
        asks = await self._requests.hand_on()
        with suppress(FailureError):  # whoever asks was ended from outside: the next boundary tells what became of it
            if request and asks and (await asks)["verdict"] in self._ending_verdicts:
                cause = f"undo was asked for: {request.reason}"
                raise Ended(WriteResult(end=AttemptEnd.UNDO_REQUESTED, cause=cause))

    async def _answer_cancellation(self, attempt: Attempt, *, undo: bool) -> None:
        """The run was cancelled from outside: an undo is handed on; otherwise undo is asked for, unless it is already,
        if this run still holds the task."""
        if undo:
            await attempt.release()
        elif self._requests.first is None:
            holder = workflow.info().workflow_id
            await hand_on(UndoReason(requester="temporal", reason="the run was cancelled", holder=holder))

    def _end(self, report: WriteResult) -> Json:
        end = report.end or AttemptEnd.SUPERSEDED
        self._show(report.steps)
        if end in _STATES:
            workflow.upsert_search_attributes([TASK_STATE.value_set(_STATES[end].value)])
        if end in (AttemptEnd.PROCESSED, AttemptEnd.COMPENSATED):
            return {"state": str(end), "steps": self._states}
        cause = report.cause[:MOST_CAUSE] or str(end)
        raise ApplicationError(cause, self._states, type=str(end), non_retryable=True)


def _input(args: Sequence[RawValue]) -> RunInput | None:
    """The input that the dispatcher gave; None for a run that was started by hand."""
    try:
        run = workflow.payload_converter().from_payload(args[0].payload, RunInput)
        return run if workflow.info().workflow_id == attempt_id(run.definition, run.task_id, run.epoch) else None
    except Exception as error:
        workflow.logger.warning("unreadable input: %s", error)
        return None
