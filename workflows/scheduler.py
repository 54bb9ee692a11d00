"""The Scheduler: one workflow that interprets a task definition, forward or undo.

The workflow type is the task's name, the workflow id is the lock holder. The state store is the truth: every boundary
is one guarded write, and a run that lost its hold ends quietly. A run that did not finish its task fails with a typed
error, so that the status column of the Temporal UI is true.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    FailureError,
    TimeoutError,
    TimeoutType,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel, ValidationError

    from activities.agent import describe_error
    from activities.agents import catalogue
    from definitions import registry
    from domain.attempts import (
        AttemptEnd,
        BeginStep,
        Results,
        ResultsRequest,
        RunInput,
        StepWork,
        UndoCall,
        UndoView,
        WriteResult,
    )
    from domain.definition import Definition, Step
    from domain.faults import DEFINITION_ERROR
    from domain.ids import attempt_id, idempotency_keys
    from domain.messages import AgentRequest, Completed, Grant, Json, Outcome, OutcomeBox, Refused, StoodDown, TimedOut
    from domain.search_attributes import TASK_STATE as STATE_NAME
    from domain.states import StepState, TaskState
    from domain.text import clean_json
    from domain.undo_requests import UndoRequest
    from workflows.options import LOCAL, LocalOptions, bookkeeping_options, inbox_pauses, queued_options
    from workflows.undo_requests import Requests, hand_on

TASK_STATE = SearchAttributeKey.for_keyword(STATE_NAME)

MOST_REQUEST_BYTES = 240_000
"""Bound on what a step asks of its Agent: with an answer each, 100 of them stay within what one history may hold."""

_ROOM_BYTES = 1_000_000
"""What one workflow task may carry, roughly: it is completed by one message, and Temporal takes 4 MB."""

_MOST_CAUSE = 1_000

_STATES = {
    AttemptEnd.PROCESSED: TaskState.PROCESSED,
    AttemptEnd.COMPENSATED: TaskState.COMPENSATED,
    AttemptEnd.UNDO_FAILED: TaskState.COMPENSATION_FAILED,
}

T = TypeVar("T")


class Ended(Exception):
    """The attempt is over: not by a bug, but because the store said so."""

    def __init__(self, report: WriteResult) -> None:
        super().__init__(report.cause)
        self.report = report


@workflow.defn(dynamic=True)
class Scheduler:
    """An attempt at one task. Signals: `compensate`, with a reason or without. Query: `progress`."""

    def __init__(self) -> None:
        self._states: dict[str, str] = {}
        self._requests = Requests()
        self._verdicts_that_end_it = frozenset({"accepted", "already"})

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
            self._verdicts_that_end_it = frozenset({"accepted"})  # that it is being undone already is this very run
        attempt, report, cancelled = _Attempt(self, run, definition), None, False
        try:
            await (attempt.undo() if run.undo else attempt.forward())
        except Ended as end:
            report = end.report
        except asyncio.CancelledError:
            cancelled = True
        if await attempt.settle() or cancelled:
            await attempt.answer_cancellation(asked=self._requests.first is not None)
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

    def show_states(self, states: Mapping[str, str]) -> None:
        """Show the states of steps in the UI; costs no event."""
        self._states |= states
        rows = "\n".join(f"| {name} | {state} |" for name, state in self._states.items())
        workflow.set_current_details(f"| step | state |\n| --- | --- |\n{rows}")

    async def until(self, waiting: Collection[asyncio.Task[WriteResult]]) -> None:
        """Wait until some of these are done; a request for undo is answered first, and nothing begins meanwhile."""
        while not any(t.done() for t in waiting):
            await workflow.wait_condition(lambda: bool(self._requests.first) or any(t.done() for t in waiting))
            await self._answer()

    async def _answer(self) -> None:
        asked = self._requests.first
        asks = await self._requests.hand_on()
        with suppress(FailureError):  # whoever asks was ended from outside: the next boundary tells what became of it
            if asked and asks and (await asks)["verdict"] in self._verdicts_that_end_it:
                raise Ended(WriteResult(end=AttemptEnd.UNDO_REQUESTED, cause=f"undo was asked for: {asked.reason}"))

    def _end(self, report: WriteResult) -> Json:
        end = report.end or AttemptEnd.SUPERSEDED
        self.show_states(report.steps)
        if end in _STATES:
            workflow.upsert_search_attributes([TASK_STATE.value_set(_STATES[end].value)])
        if end in (AttemptEnd.PROCESSED, AttemptEnd.COMPENSATED):
            return {"state": str(end), "steps": self._states}
        cause = report.cause[:_MOST_CAUSE] or str(end)
        raise ApplicationError(cause, self._states, type=str(end), non_retryable=True)


class _Attempt:
    """The interpretation of one definition over one task."""

    def __init__(self, shown: Scheduler, run: RunInput, definition: Definition) -> None:
        self._shown, self._run, self._definition = shown, run, definition
        self._steps = {s.name: s for s in run.steps}
        self._record: Any = None
        self._results: dict[str, Json] = {}
        self._grants: dict[str, Grant] = {}
        self._carried, self._writes, self._ending = 0, 0, False
        shown.show_states({s.name: s.state for s in run.steps})

    # --- forward ----------------------------------------------------------------------------------------------

    async def forward(self) -> None:
        """Do the steps that are left, in order or as the graph allows; ends by raising `Ended`."""
        await self._load([s.name for s in self._run.steps if s.state is StepState.COMPLETED])
        running: dict[str, asyncio.Task[WriteResult]] = {}
        while True:
            for step in self._ready(running):
                work = await self._interpret(step.name, partial(self._work, step))
                if step.queue:
                    await self._make_room(work.request.body if work.request else {})
                self._shown.show_states({step.name: StepState.RUNNING})
                running[step.name] = asyncio.create_task(self._carry_out(step, work))
            await self._shown.until(running.values())
            for name in [n for n, task in running.items() if task.done()]:
                await self._finish(name, running.pop(name).result())

    def _ready(self, running: Collection[str]) -> list[Step]:
        return [
            s
            for s in self._definition.steps
            if s.name not in self._results
            and s.name not in running
            and all(a in self._results for a in self._definition.after(s))
        ]

    async def _finish(self, name: str, report: WriteResult) -> None:
        """A step is done, or the attempt is over."""
        if report.end is not None:
            raise Ended(report)
        self._shown.show_states({name: StepState.COMPLETED})
        follower = self._definition.follower(self._definition.step(name))
        if follower and report.grant:
            self._grants[follower.name] = report.grant
        if report.result is None:
            await self._load([name])
        else:
            self._results[name] = report.result
            await self._make_room(report.result)

    async def _load(self, wanted: Collection[str]) -> None:
        """Fetch recorded results, page by page."""
        while missing := [name for name in wanted if name not in self._results]:
            asked = ResultsRequest(task_id=self._run.task_id, steps=missing)
            page: Results = await self._local("results", asked, Results, LOCAL)
            if not page.results:
                raise Ended(
                    WriteResult(end=AttemptEnd.SUPERSEDED, cause=f"the results of {', '.join(missing)} are gone")
                )
            self._results |= page.results
            await self._make_room(page.results)

    async def _make_room(self, body: Json) -> None:
        """Let a new workflow task begin where the messages of this one would be too much for one completion."""
        self._carried += len(json.dumps(body))
        if self._carried > _ROOM_BYTES:
            await workflow.sleep(timedelta(milliseconds=1))
            self._carried = 0

    async def _interpret(self, step: str, make: Callable[[], T]) -> T:
        """What the definition says of a step; whatever it raises is a permanent fault of the task, at once."""
        try:
            return make()
        except Exception as error:
            message = f"{self._definition.name} v{self._definition.version} fails: {describe_error(error)}"[
                :_MOST_CAUSE
            ]
            outcome = Refused(code=DEFINITION_ERROR, message=message, unknown_before=None)
        known = next((s for s in self._definition.steps if s.name == step), None)
        policy = self._definition.refused(known) if known else self._definition.on_refused
        raise Ended(await self._bookkeeping("record", self._work_on(step, outcome=outcome, on_refused=policy)))

    def _work(self, step: Step) -> StepWork:
        """Everything that the definition says of a step, as its functions give it."""
        if self._record is None:
            self._check()
            self._record = self._definition.record.model_validate(self._run.record)
        body = _body(step.action, step.request(self._record, self._results))
        follower = self._definition.follower(step)
        return self._work_on(
            step.name,
            begin=self._begin(step),
            then=self._try_begin(follower) if follower else None,
            on_refused=self._definition.refused(step),
            request=self._request(step.name, step.action, body),
        )

    def _check(self) -> None:
        """The task has the steps that its definition has: nobody has changed that since it was released."""
        if changed := self._steps.keys() ^ {s.name for s in self._definition.steps}:
            raise LookupError(f"the task and its definition differ in step {', '.join(sorted(changed))}")

    def _begin(self, step: Step) -> BeginStep:
        undo = None
        if step.undo:
            undo = UndoCall(action=step.undo.action, body=_body(step.undo.action, step.undo.request(self._record)))
        within_s = step.within.total_seconds()
        return BeginStep(step=step.name, within_s=within_s, calls=step.calls, queued=step.queue is not None, undo=undo)

    def _try_begin(self, step: Step) -> BeginStep | None:
        """Terms of the step behind this one; None if its definition fails: that is told when its turn comes."""
        try:
            return self._begin(step)
        except Exception:
            return None

    # --- undo -------------------------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Undo what was begun, last begun first; ends by raising `Ended`."""
        log = self._run.undo_log
        if not log:
            raise Ended(await self._bookkeeping("finish_undo", self._work_on("")))
        for n, entry in enumerate(log):
            step = await self._interpret(entry.step, partial(self._definition.step, entry.step))
            work = self._undo_work(step, entry, log[n + 1] if n + 1 < len(log) else None)
            self._shown.show_states({entry.step: StepState.UNDOING})
            task = asyncio.create_task(self._carry_out(step, work))
            await self._shown.until([task])
            report = task.result()
            if report.end is not None:
                raise Ended(report)
            self._shown.show_states({entry.step: StepState.UNDONE})
            if work.then and report.grant:
                self._grants[work.then.step] = report.grant

    def _undo_work(self, step: Step, entry: UndoView, after: UndoView | None) -> StepWork:
        following = [s for s in self._definition.steps if after and s.name == after.step]
        return self._work_on(
            entry.step,
            begin=_undo_begin(step),
            then=_undo_begin(following[0]) if following else None,
            request=self._request(entry.step, entry.action, {}, entry.generation),
        )

    # --- both -------------------------------------------------------------------------------------------------

    def _work_on(self, step: str, **terms: Any) -> StepWork:
        run = self._run
        terms.setdefault("begin", BeginStep(step=step, within_s=0, calls=0))
        return StepWork(task_id=run.task_id, epoch=run.epoch, nonce=run.nonce, step=step, undo=run.undo, **terms)

    def _request(self, step: str, action: str, body: Json, generation: int = 0) -> AgentRequest:
        return AgentRequest(
            task_id=self._run.task_id,
            step=step,
            action=action,
            body=body,
            keys=idempotency_keys(self._run.task_id, step, self._steps[step].key_generation),
            epoch=self._run.epoch,
            calls=0,
            run_id=workflow.info().run_id,
            undo=self._run.undo,
            generation=generation,
        )

    async def _carry_out(self, step: Step, work: StepWork) -> WriteResult:
        """Do one piece of work where the definition places it; its boundary is written by the Scheduler either way."""
        try:
            return await (self._ask_queued(step, work) if step.queue else self._bookkeeping("perform", work))
        except Ended as end:
            return end.report

    async def _ask_queued(self, step: Step, work: StepWork) -> WriteResult:
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
        report = await self._bookkeeping("record", work.model_copy(update={"outcome": outcome}))
        result = outcome.result if isinstance(outcome, Completed) else None
        return report.model_copy(update={"result": result})

    async def _call(self, step: Step, work: StepWork, grant: Grant) -> Outcome:
        """Ask a queued Agent. An answer that comes later may be in the inbox before Temporal hears of it."""
        asked = asyncio.create_task(self._ask(step, work, grant))
        for pause_s in inbox_pauses(grant.within_s) if step.answers_later and not work.undo else []:
            await workflow.wait([asked], timeout=pause_s)
            if asked.done():
                break
            with suppress(Ended):  # the store is away, or the attempt is ending
                if (answer := (await self._bookkeeping("find_answer", work)).answer) is not None:
                    return answer
        return await asked

    async def _ask(self, step: Step, work: StepWork, grant: Grant) -> Outcome:
        """What the activity comes to. Its schedule-to-close timeout is the durable timer of the race."""
        if work.request is None:
            raise AssertionError("a queued call has a request")
        if grant.within_s <= 0:
            return StoodDown(cause="the time that was granted is gone", sent=0, retry_after_s=1)
        request = work.request.granted(grant, work.request.run_id)
        options = queued_options(step, work, grant)
        try:
            return Completed.model_validate(await workflow.execute_activity(request.action, request, **options))
        except ActivityError as error:
            return _outcome_of(error, step, request)
        except ValidationError:  # a person completed it
            return TimedOut(cause="what the activity was completed with can't be read")

    async def _bookkeeping(self, name: str, work: StepWork) -> WriteResult:
        began = workflow.now()
        report = await self._local(name, work, WriteResult, bookkeeping_options(name, work))
        return report.model_copy(update={"grant": report.grant and report.grant.begun_at(began)})

    async def _local(self, name: str, given: StepWork | ResultsRequest, gives: type[T], options: LocalOptions) -> T:
        if self._ending:
            raise Ended(WriteResult(end=AttemptEnd.SUPERSEDED, cause="the attempt is ending"))
        self._writes += 1
        try:
            return cast(T, await workflow.execute_local_activity(name, given, result_type=gives, **options))
        except FailureError as error:  # as the local activity raised it
            if is_cancelled_exception(error):
                raise
            raise Ended(WriteResult(end=AttemptEnd.NOT_RECORDED, cause=f"{name}: {error.cause or error}")) from error
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

    async def answer_cancellation(self, *, asked: bool) -> None:
        """The run was cancelled from outside: an undo is handed on; otherwise undo is asked for, unless it is already,
        if this run still holds the task."""
        if self._run.undo:
            await workflow.execute_local_activity("release", self._work_on(""), result_type=dict, **LOCAL)
        elif not asked:
            holder, reason = workflow.info().workflow_id, "the run was cancelled"
            await hand_on(UndoRequest(task_id=self._run.task_id, requester="temporal", reason=reason, holder=holder))


def _undo_begin(step: Step) -> BeginStep:
    calls, queued = step.undo.calls if step.undo else 1, step.queue is not None
    return BeginStep(step=step.name, within_s=step.within.total_seconds(), calls=calls, queued=queued)


def _body(action: str, made: BaseModel) -> Json:
    """The request that a definition's function made, if its Agent can take it."""
    json.dumps(made.model_dump(), allow_nan=False, default=str)  # as JSON, pydantic makes NaN a null
    body = made.model_dump(mode="json")
    size = len(json.dumps(body, ensure_ascii=False).encode())
    if size > MOST_REQUEST_BYTES:
        raise ValueError(f"the request has {size} bytes; {MOST_REQUEST_BYTES} are the most")
    if clean_json(body) != body:
        raise ValueError("the request holds a NUL, or half a surrogate pair")
    catalogue()[action].request.model_validate(body)
    return body


def _input(args: Sequence[RawValue]) -> RunInput | None:
    """The input that the dispatcher gave; None for a run that was started by hand."""
    try:
        run = workflow.payload_converter().from_payload(args[0].payload, RunInput)
        return run if workflow.info().workflow_id == attempt_id(run.definition, run.task_id, run.epoch) else None
    except Exception as error:
        workflow.logger.warning("unreadable input: %s", error)
        return None


def _outcome_of(error: ActivityError, step: Step, request: AgentRequest) -> Outcome:
    """What a failed activity says of the call: the Agent's own word, or that nobody took it, or that time won."""
    cause = error.cause
    if isinstance(cause, TimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START:
            what = "no worker took a step from it in time: start one, or more"
            return StoodDown.for_want(f"task queue {step.queue}", what, request.epoch)
        # an Agent heartbeats before each call; one that answers later has answered
        called = bool(cause.last_heartbeat_details) and not step.answers_later
        return TimedOut(cause="the deadline came first", called=called)
    if isinstance(cause, ApplicationError):
        if cause.details:
            return _said(cause.details[0])
        if cause.type == "NotFoundError" and cause.message.startswith(f"Activity function {request.action} for "):
            what = f"a worker on task queue {step.queue} can't carry it out: give it this release"
            return StoodDown.for_want(request.action, what, request.epoch)
    return TimedOut(cause=f"the Agent failed: {cause or error}")


def _said(details: Any) -> Outcome:
    try:
        return OutcomeBox.model_validate(details).outcome
    except ValidationError:
        return TimedOut(cause="what the activity failed with can't be read")
