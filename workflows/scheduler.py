"""The Scheduler: one workflow that interprets a task definition, forward or undo (B4, B5, B8).

The workflow type is the task's name, the workflow id is the lock holder. The state store is the truth: every boundary
is one guarded write, and a run that lost its hold ends quietly. A run that did not finish its task fails with a typed
error, so that the status column of the Temporal UI is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from domain.definition import Definition, Step
    from domain.ids import attempt_id, idempotency_keys
    from domain.messages import (
        AgentRequest,
        Begin,
        Completed,
        End,
        Grant,
        Json,
        Outcome,
        OutcomeBox,
        Report,
        RunInput,
        TimedOut,
        UndoCall,
        UndoRequest,
        UndoView,
        Work,
    )
    from domain.search_attributes import TASK_STATE as STATE_NAME
    from domain.states import StepState, TaskState
    from pipelines import registry
    from workflows.asking import ask_for_undo, read_request
    from workflows.terms import LOCAL, bookkeeping_options, queued_options

TASK_STATE = SearchAttributeKey.for_keyword(STATE_NAME)

MOST_WAITING = 10
"""Requests for undo that wait at once: they all ask for the same, and only the first accepted one is recorded."""

_STATES = {
    End.PROCESSED: TaskState.PROCESSED,
    End.COMPENSATED: TaskState.COMPENSATED,
    End.UNDO_FAILED: TaskState.COMPENSATION_FAILED,
}


class Ended(Exception):
    """The attempt is over: not by a bug, but because the store said so."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.cause)
        self.report = report


@workflow.defn(dynamic=True)
class Scheduler:
    """An attempt at one task. Signals: `compensate`, with a reason or without. Query: `progress`."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._asked: list[UndoRequest] = []
        self._task_id = ""
        self._lost_by = frozenset({"accepted", "already"})

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Json:
        """Carry out what was claimed. Returns the step table; raises a typed error if the task is not finished."""
        run = _input(args)
        self._task_id = run.task_id
        definition = registry().find(run.definition, run.version)
        if definition is None:
            name = f"{run.definition} v{run.version}"
            raise ApplicationError(
                f"this worker has no definition {name}", type="UnknownDefinition", non_retryable=True
            )
        if run.undo:
            self._lost_by = frozenset({"accepted"})  # that it is being undone already is this very run
        attempt, report, cancelled = _Attempt(self, run, definition), None, False
        try:
            await (attempt.undo() if run.undo else attempt.forward())
        except Ended as end:
            report = end.report
        except asyncio.CancelledError:
            cancelled = True
        if await attempt.settle() or cancelled:
            await attempt.stand_aside()
        await self._ask_late()
        if report is None:
            raise asyncio.CancelledError
        return self._end(report)

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a request for undo; whatever it carries, it can't fail the run."""
        if name == "compensate":
            if len(self._asked) < MOST_WAITING:
                self._asked.append(read_request(args))
            else:
                workflow.logger.info("%s requests for undo wait already: one more is dropped", MOST_WAITING)
        else:
            workflow.logger.warning("signal %s is not known: only `compensate` is", name)

    @workflow.query
    def progress(self) -> dict[str, str]:
        """State of each step, as this run knows it."""
        return self._states

    def saw(self, step: str, state: str) -> None:
        """Show a step's state in the UI; costs no event."""
        self._states[step] = state
        rows = "\n".join(f"| {name} | {state} |" for name, state in self._states.items())
        workflow.set_current_details(f"| step | state |\n| --- | --- |\n{rows}")

    async def until(self, waiting: Collection[asyncio.Task[Report]]) -> None:
        """Wait until some of these are done, answering requests for undo meanwhile."""
        while not any(t.done() for t in waiting):
            await workflow.wait_condition(lambda: bool(self._asked) or any(t.done() for t in waiting))
            while self._asked:
                request = self._next_request()
                if await ask_for_undo(request) in self._lost_by:
                    raise Ended(Report(end=End.UNDO_REQUESTED, cause=f"undo was asked for: {request.reason}"))

    async def _ask_late(self) -> None:
        """Pass on what was asked while the attempt was ending: in every state it has an answer."""
        while self._asked:
            await ask_for_undo(self._next_request())

    def _next_request(self) -> UndoRequest:
        """The next request, for this task: a signal can come before the input has been read."""
        return self._asked.pop(0).model_copy(update={"task_id": self._task_id})

    def _end(self, report: Report) -> Json:
        end = report.end or End.SUPERSEDED
        if end in _STATES:
            workflow.upsert_search_attributes([TASK_STATE.value_set(_STATES[end].value)])
        if end in (End.PROCESSED, End.COMPENSATED):
            return {"state": str(end), "steps": self._states}
        raise ApplicationError(report.cause or str(end), self._states, type=str(end), non_retryable=True)


class _Attempt:
    """The interpretation of one definition over one task."""

    def __init__(self, shown: Scheduler, run: RunInput, definition: Definition) -> None:
        self._shown, self._run, self._definition = shown, run, definition
        self._record: Any = None if run.undo else definition.record.model_validate(run.record)
        self._results: dict[str, Json] = {s.name: s.result or {} for s in run.steps if s.state is StepState.COMPLETED}
        self._grants: dict[str, Grant] = {}
        self._writes, self._ending = 0, False
        for step in run.steps:
            shown.saw(step.name, step.state)

    # --- forward ----------------------------------------------------------------------------------------------

    async def forward(self) -> None:
        """Do the steps that are left, in order or as the graph allows; ends by raising `Ended`."""
        running: dict[str, asyncio.Task[Report]] = {}
        while True:
            for step in self._ready(running):
                running[step.name] = asyncio.create_task(self._step(step))
            await self._shown.until(running.values())
            for name in [n for n, task in running.items() if task.done()]:
                self._results[name] = self._result(name, running.pop(name).result())

    def _ready(self, running: dict[str, asyncio.Task[Report]]) -> list[Step]:
        return [
            s
            for s in self._definition.steps
            if s.name not in self._results
            and s.name not in running
            and all(a in self._results for a in self._definition.after(s))
        ]

    def _result(self, name: str, report: Report) -> Json:
        if report.end is not None:
            if report.end is End.PROCESSED:
                self._shown.saw(name, StepState.COMPLETED)
            raise Ended(report)
        self._shown.saw(name, StepState.COMPLETED)
        follower = self._definition.follower(self._definition.step(name))
        if follower and report.grant:
            self._grants[follower.name] = report.grant
        return report.result or {}

    async def _step(self, step: Step) -> Report:
        self._shown.saw(step.name, StepState.RUNNING)
        follower = self._definition.follower(step)
        generation = next(s.key_generation for s in self._run.steps if s.name == step.name)
        work = Work(
            task_id=self._run.task_id,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            step=step.name,
            undo=False,
            begin=self._begin(step),
            then=self._begin(follower) if follower else None,
            on_refused=self._definition.refused(step),
            request=self._request(
                step.name,
                step.action,
                step.request(self._record, self._results).model_dump(mode="json"),
                idempotency_keys(self._run.task_id, step.name, generation),
            ),
        )
        return await self._carry_out(step, work)

    def _begin(self, step: Step) -> Begin:
        undo = None
        if step.undo:
            body = step.undo.request(self._record).model_dump(mode="json")
            undo = UndoCall(action=step.undo.action, body=body)
        return Begin(step=step.name, within_s=step.within.total_seconds(), calls=step.calls, undo=undo)

    # --- undo -------------------------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Undo what was begun, last begun first (F3); ends by raising `Ended`."""
        log = self._run.undo_log
        if not log:
            work = self._undo_work(None, None)
            raise Ended(await self._bookkeeping("finish_undo", work))
        for n, entry in enumerate(log):
            work = self._undo_work(entry, log[n + 1] if n + 1 < len(log) else None)
            self._shown.saw(entry.step, StepState.UNDOING)
            task = asyncio.create_task(self._carry_out(self._definition.step(entry.step), work))
            await self._shown.until([task])
            report = task.result()
            if report.end in (None, End.COMPENSATED):
                self._shown.saw(entry.step, StepState.UNDONE)
            if report.end is not None:
                raise Ended(report)
            if work.then and report.grant:
                self._grants[work.then.step] = report.grant

    def _undo_work(self, entry: UndoView | None, after: UndoView | None) -> Work:
        begin = self._undo_begin(entry) if entry else Begin(step="", within_s=0, calls=0)
        return Work(
            task_id=self._run.task_id,
            epoch=self._run.epoch,
            nonce=self._run.nonce,
            step=entry.step if entry else "",
            undo=True,
            begin=begin,
            then=self._undo_begin(after) if after else None,
            request=self._undo_request(entry) if entry else None,
        )

    def _undo_request(self, entry: UndoView) -> AgentRequest:
        request = self._request(entry.step, entry.action, entry.body, entry.keys)
        return request.model_copy(update={"undo": True, "generation": entry.generation})

    def _undo_begin(self, entry: UndoView) -> Begin:
        step = self._definition.step(entry.step)
        calls = step.undo.calls if step.undo else 1
        return Begin(step=step.name, within_s=step.within.total_seconds(), calls=calls)

    # --- both -------------------------------------------------------------------------------------------------

    def _request(self, step: str, action: str, body: Json, keys: list[str]) -> AgentRequest:
        return AgentRequest(
            task_id=self._run.task_id,
            step=step,
            action=action,
            body=body,
            keys=keys,
            epoch=self._run.epoch,
            calls=0,
            run_id=workflow.info().run_id,
        )

    async def _carry_out(self, step: Step, work: Work) -> Report:
        """Do one piece of work where the definition places it; its boundary is written by the Scheduler either way."""
        if step.queue is None:
            return await self._bookkeeping("perform", work)
        grant = self._grants.pop(step.name, None)
        outcome: Outcome | None = None
        if grant is None:
            report = await self._bookkeeping("record", work)
            if report.end is not None or report.grant is None:
                return report
            grant = report.grant
            outcome = report.answer
        if outcome is None:
            outcome = await self._call(step, work, grant)
        return await self._bookkeeping("record", work.model_copy(update={"outcome": outcome}))

    async def _call(self, step: Step, work: Work, grant: Grant) -> Outcome:
        """Ask a queued Agent. The activity's schedule-to-close timeout is the durable timer of the race (C9)."""
        if work.request is None or step.queue is None:
            raise AssertionError("a queued call has a request and a queue")
        request = work.request.granted(grant, work.request.run_id)
        try:
            body = await workflow.execute_activity(
                request.action, request, result_type=dict, **queued_options(step, work, grant)
            )
        except ActivityError as error:
            return _outcome_of(error, step)
        return Completed.model_validate(body)

    async def _bookkeeping(self, name: str, work: Work) -> Report:
        if self._ending:
            return Report(end=End.SUPERSEDED, cause="the attempt is ending")
        self._writes += 1
        try:
            report: Report = await workflow.execute_local_activity(
                name, work, result_type=Report, **bookkeeping_options(name, work)
            )
            return report
        except FailureError as error:  # as the local activity raised it
            if is_cancelled_exception(error):
                raise
            return Report(end=End.NOT_RECORDED, cause=f"{name} of step {work.step}: {error.cause or error}")
        finally:
            self._writes -= 1

    async def settle(self) -> bool:
        """Begin nothing more, and wait for what this worker is in the middle of; queued calls are let go.

        A run must not end in the middle of a local activity: its marker would come behind the last command. Returns
        whether the run was cancelled meanwhile.
        """
        self._ending = True
        try:
            await workflow.wait_condition(lambda: self._writes == 0)
        except asyncio.CancelledError:
            await workflow.wait_condition(lambda: self._writes == 0)  # a run is cancelled once
            return True
        return False

    async def stand_aside(self) -> None:
        """The run was cancelled from outside: ask for undo, if it still holds the task; an undo is handed on (G6)."""
        holder = workflow.info().workflow_id
        if self._run.undo:
            work = self._undo_work(None, None)
            await workflow.execute_local_activity("release", work, result_type=dict, **LOCAL)
            return
        reason = "the run was cancelled"
        await ask_for_undo(UndoRequest(task_id=self._run.task_id, requester="temporal", reason=reason, holder=holder))


def _input(args: Sequence[RawValue]) -> RunInput:
    """The input that the dispatcher gave; a run that was started by hand is refused."""
    try:
        run = workflow.payload_converter().from_payload(args[0].payload, RunInput)
        if workflow.info().workflow_id == attempt_id(run.definition, run.task_id, run.epoch):
            return run
    except Exception as error:
        workflow.logger.warning("unreadable input: %s", error)
    message = "only the dispatcher starts an attempt: submit the task with `starter.py`"
    raise ApplicationError(message, type="NotAnAttempt", non_retryable=True)


def _outcome_of(error: ActivityError, step: Step) -> Outcome:
    """What a failed activity says of the call: the Agent's own word, or that time won the race."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.details:
        return OutcomeBox.model_validate(cause.details[0]).outcome
    if isinstance(cause, TimeoutError):  # an Agent heartbeats before each call; one that answers later has answered
        called = bool(cause.last_heartbeat_details) and not step.answers_later
        return TimedOut(cause="the deadline came first", called=called)
    return TimedOut(cause=f"the Agent failed: {cause or error}")
