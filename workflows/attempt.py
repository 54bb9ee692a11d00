"""An attempt at one task: the interpretation of its definition, forward or undo.

The state store is the truth: every boundary is one guarded write, and an attempt that lost its hold ends quietly.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

from temporalio import workflow

from domain.attempts import AttemptEnd, ResultsRequest, RunInput, StepOutcome, StepWork, WriteResult
from domain.attempts import Results as RecordedResults
from domain.definition import Definition, Step
from domain.error_words import describe_error
from domain.faults import DEFINITION_ERROR
from domain.messages import Completed, Failed, Grant, Json, Outcome
from domain.states import StepState
from workflows.options import LOCAL, inbox_pauses
from workflows.queued_call import call_agent
from workflows.step_work import StepInterpreter
from workflows.writes import Ended, Writes

MOST_CAUSE = 1_000

_ROOM_BYTES = 1_000_000
"""What one workflow task may carry, roughly: it is completed by one message, and Temporal takes 4 MB."""

T = TypeVar("T")


class Attempt:
    """The interpretation of one definition over one task.

    Args:
        show: Takes the states of steps that have changed.
        wait_for_any: Waits until some of these are done; raises `Ended` if the attempt is to end before.
    """

    def __init__(
        self,
        run: RunInput,
        definition: Definition,
        show: Callable[[Mapping[str, str]], None],
        wait_for_any: Callable[[Collection[asyncio.Task[WriteResult]]], Awaitable[None]],
    ) -> None:
        self._run, self._definition, self._show, self._wait_for_any = run, definition, show, wait_for_any
        self._interpreter, self.writes = StepInterpreter(run, definition), Writes()
        self._results: dict[str, Json] = {}
        self._grants: dict[str, Grant] = {}
        self._carried = 0
        show({s.name: s.state for s in run.steps})

    # --- forward ----------------------------------------------------------------------------------------------

    async def forward(self) -> None:
        """Do the steps that are left, in order or as the graph allows; ends by raising `Ended`."""
        await self._load([s.name for s in self._run.steps if s.state is StepState.COMPLETED])
        running: dict[str, asyncio.Task[WriteResult]] = {}
        while True:
            for step in self._ready(running):
                work = await self._interpret(step.name, partial(self._interpreter.work, step, self._results))
                if step.queue:
                    await self._make_room(work.request.body)
                self._show({step.name: StepState.RUNNING})
                running[step.name] = asyncio.create_task(self._carry_out(step, work))
            await self._wait_for_any(running.values())
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
        self._show({name: StepState.COMPLETED})
        follower = self._definition.follower(self._definition.step(name))
        if follower and report.grant:
            self._grants[follower.name] = report.grant
        if report.result is None:
            await self._load([name])
        else:
            self._results[name] = report.result
            await self._make_room(report.result)

    async def _load(self, names: Collection[str]) -> None:
        """Fetch recorded results, page by page."""
        while missing := [name for name in names if name not in self._results]:
            request = ResultsRequest(task_id=self._run.task_id, steps=missing)
            page = await self.writes.local("results", request, RecordedResults, LOCAL)
            if not page.results:
                cause = f"the results of {', '.join(missing)} are gone"
                raise Ended(WriteResult(end=AttemptEnd.SUPERSEDED, cause=cause))
            self._results |= page.results
            await self._make_room(page.results)

    async def _make_room(self, body: Json) -> None:
        """Let a new workflow task begin where the messages of this one would be too much for one completion."""
        self._carried += len(json.dumps(body))
        if self._carried > _ROOM_BYTES:
            await workflow.sleep(timedelta(milliseconds=1))
            self._carried = 0

    # --- undo -------------------------------------------------------------------------------------------------

    async def undo(self) -> None:
        """Undo what was begun, last begun first; ends by raising `Ended`."""
        log = self._run.undo_log
        if not log:
            raise Ended(await self.writes.write("finish_undo", self._interpreter.attempt))
        for entry, following in zip(log, [*log[1:], None], strict=True):
            work = await self._interpret(entry.step, partial(self._interpreter.undo_work, entry, following))
            self._show({entry.step: StepState.UNDOING})
            task = asyncio.create_task(self._carry_out(self._definition.step(entry.step), work))
            await self._wait_for_any([task])
            report = task.result()
            if report.end is not None:
                raise Ended(report)
            self._show({entry.step: StepState.UNDONE})
            if work.then and report.grant:
                self._grants[work.then.step] = report.grant

    # --- both -------------------------------------------------------------------------------------------------

    async def _interpret(self, step: str, make: Callable[[], T]) -> T:
        """What the definition says of a step; whatever it raises is a permanent fault of the task, at once."""
        try:
            return make()
        except Exception as error:
            cause = f"{self._definition.name} v{self._definition.version} fails: {describe_error(error)}"[:MOST_CAUSE]
        known = self._definition.find(step)
        outcome = StepOutcome(
            **dict(self._interpreter.attempt),
            step=step,
            outcome=Failed(code=DEFINITION_ERROR, message=cause, unknown_before=None),
            on_refused=self._definition.refused(known) if known else self._definition.on_refused,
        )
        raise Ended(await self.writes.write("write_outcome", outcome))

    async def _carry_out(self, step: Step, work: StepWork) -> WriteResult:
        """Do one piece of work where the definition places it; its boundary is written by the Scheduler either way."""
        try:
            return await (self._do_queued(step, work) if step.queue else self.writes.write(work.request.action, work))
        except Ended as end:
            return end.report

    async def _do_queued(self, step: Step, work: StepWork) -> WriteResult:
        grant = self._grants.pop(step.name, None)
        outcome: Outcome | None = None
        if grant is None:
            report = await self.writes.write("begin_step", work)
            if report.end is not None or report.grant is None:
                return report
            grant, outcome = report.grant, report.answer
        if outcome is None:
            outcome = await self._call(step, work, grant)
        report = await self.writes.write("write_outcome", work.came_to(outcome))
        return report.model_copy(update={"result": outcome.result if isinstance(outcome, Completed) else None})

    async def _call(self, step: Step, work: StepWork, grant: Grant) -> Outcome:
        """Ask a queued Agent. An answer that comes later may be in the inbox before Temporal hears of it."""
        call = asyncio.create_task(call_agent(step, work, grant))
        for pause_s in inbox_pauses(grant.within_s) if step.answers_later and not work.undo else []:
            await workflow.wait([call], timeout=pause_s)
            if call.done():
                break
            with suppress(Ended):  # the store is away, or the attempt is ending
                if (answer := (await self.writes.write("find_answer", work)).answer) is not None:
                    return answer
        return await call

    async def release(self) -> None:
        """Give the task back: the run was cancelled from outside."""
        attempt = self._interpreter.attempt
        await workflow.execute_local_activity("release", attempt, result_type=dict, **LOCAL)
