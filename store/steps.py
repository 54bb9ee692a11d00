"""What the lock owner of a task writes: the boundaries between its steps, and how its attempt ends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

from domain.attempts import AttemptEnd, BeginStep, WriteResult
from domain.messages import Json
from domain.states import EventKind, StepState
from store.claims import Hold
from store.database import Params
from store.judgement import ended, granted, lost, over
from store.queries import query
from store.snapshot import Snapshot
from store.tasks import Tasks

_BLOCKED = timedelta(seconds=1)
"""Pause of a task whose lock owner met an open breaker; from then on the claim passes it over by itself."""

_PAGE_BYTES = 1_000_000
"""Of results that are read at once: they go into one message to Temporal, which takes 2 MB."""


class Steps:
    """Writes of an attempt, whether it goes forward or undoes."""

    def __init__(self, tasks: Tasks, claim_within: timedelta) -> None:
        self._tasks, self._claim_within = tasks, claim_within

    async def give_up(
        self, hold: Hold, step: str, cause: str, *, unknown: bool = True, sent: int | None = None, pause_s: float = 0.0
    ) -> WriteResult:
        """The allowance is spent: bring the task's deadline forward to now, so that the Supervisor need not wait.

        Args:
            hold: Who gives up. step: Whose calls. cause: Why.
            unknown: A call may have been done; the next attempt is told so.
            sent: Calls of the reservation that were sent, the rest returns; None: not known, and nothing does.
            pause_s: The next attempt begins no sooner than this.
        """
        said = {"step": step, "cause": cause, "unknown": unknown, "sent": sent, "pause_s": pause_s}
        return await self.end("give_up", hold, said, EventKind.GAVE_UP, AttemptEnd.GAVE_UP, cause)

    async def release(
        self,
        hold: Hold,
        cause: str,
        *,
        step: str | None = None,
        sent: int | None,
        delay: timedelta,
        lacking: str = "",
    ) -> WriteResult:
        """Give the row back without counting a failure; of what `step` reserved all returns but the calls `sent`.

        `sent`: None if that is not known; then nothing returns. `lacking`: the part with which the cause begins, of
        which there is to be an alert.
        """
        said = {"cause": cause, "step": step, "sent": sent, "delay_s": delay.total_seconds(), "lacking": lacking}
        return await self.end("release", hold, said, EventKind.RELEASED, AttemptEnd.RELEASED, cause)

    async def note_late(self, task_id: str, step: str, answer: Json, *, actor: str) -> None:
        """Keep an answer that came too late as evidence, once an actor and step; nothing else changes."""
        params = {"task_id": task_id, "actor": actor, "step": step, "answer": json.dumps(answer)}
        await self._tasks.database.transaction((query("lock"), params), (query("late_answer"), params))

    async def results(self, task_id: str, steps: Sequence[str]) -> dict[str, Json]:
        """Recorded results of these steps, as many as one message should carry, but one at least; none that is gone."""
        params = {"task_id": task_id, "steps": list(steps), "most_bytes": _PAGE_BYTES}
        return {r["name"]: r["result"] for r in await self._tasks.database.rows(query("results"), params)}

    async def end(
        self, statement: str, hold: Hold, said: Params, kind: EventKind, end: AttemptEnd, cause: str
    ) -> WriteResult:
        """A write by which an attempt ends, which it makes once."""
        changed, after = await self._tasks.write(statement, {**hold.params, **said})
        if changed or await self._tasks.was_written(hold.task_id, kind, hold.locked_by):
            return over(end, cause, after)
        return lost(after, hold)

    async def boundary(
        self,
        statement: str,
        hold: Hold,
        finished: StepState,
        *,
        done: str | None,
        calls: int | None,
        begin: BeginStep | None,
        **more: Any,
    ) -> WriteResult:
        """A write that leaves step `done` `finished` and begins another, and what it grants."""
        reservation = uuid4().hex
        params = {
            **hold.params,
            "done": done,
            "calls": calls,
            "begin": begin.step if begin else None,
            "within_s": begin.within_s if begin else 0.0,
            "allowance": begin.calls if begin else 0,
            "reservation": reservation,
            "original": begin is not None and begin.original,
            "claim_within_s": self._claim_within.total_seconds(),
            **more,
        }
        _, after = await self._tasks.write(statement, params)
        if after is None:
            return lost(after, hold)
        if (end := ended(after, hold, done, finished)) is not None:
            return end
        if begin is None:
            return WriteResult(result=after.result)
        step = after.step(begin.step)
        if step.reservation == reservation:
            return WriteResult(result=after.result if done else None, grant=granted(step, after))
        if done is not None or step.state is finished:
            return WriteResult(result=after.result or {})  # what did not begin is begun again, or given up, by itself
        return await self._not_begun(hold, after, step.name)

    async def _not_begun(self, hold: Hold, after: Snapshot, name: str) -> WriteResult:
        """End an attempt whose next step could not begin: for want of its service, or of calls."""
        step = after.step(name)
        if step.blocked:
            cause = f"step {name} waits: its service's circuit breaker is open"
            return await self.release(hold, cause, sent=0, delay=_BLOCKED)
        if step.calls_left == 0:
            return await self.give_up(hold, name, f"step {name}: the budget of calls is spent")
        return over(AttemptEnd.SUPERSEDED, f"step {name} is {step.state} and could not begin", after)


class Forward:
    """Writes of an attempt that goes forward."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def advance(
        self,
        hold: Hold,
        *,
        done: str | None = None,
        result: Json | None = None,
        calls: int | None = None,
        begin: BeginStep | None = None,
    ) -> WriteResult:
        """Write one boundary: step `done` is Completed with `result`, step `begin` Running with its calls reserved.

        The task is Processed with the last step. A reservation unused (`calls` of it were used) returns.
        """
        undo = begin.undo if begin else None
        return await self._steps.boundary(
            "advance",
            hold,
            StepState.COMPLETED,
            done=done,
            calls=calls,
            begin=begin,
            result=None if result is None else json.dumps(result),
            undo_action=undo.action if undo else None,
            undo_body=json.dumps(undo.body) if undo else None,
        )

    async def fail(
        self, hold: Hold, step: str, error: Json, *, unknown: bool | None, then: Literal["undo", "error"]
    ) -> WriteResult:
        """Record a permanent fault at once: Error with an alert, or Compensating.

        `unknown`: a call of this attempt or an earlier one may have been done all the same; the Agent knows, as it was
        told with the grant. None: this attempt sent none, and of earlier ones it is as on record; the step need not
        have begun.
        """
        said = {"step": step, "error": json.dumps(error), "unknown": unknown, "then": then}
        return await self._steps.end("fail", hold, said, EventKind.FAILED, AttemptEnd.PERMANENT_FAULT, error["message"])


class Undo:
    """Writes of an attempt that undoes."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def advance(
        self, hold: Hold, *, done: str | None = None, calls: int | None = None, begin: BeginStep | None = None
    ) -> WriteResult:
        """Write one boundary: step `done` is Undone, the undo of step `begin` in progress with its calls reserved.

        The task is Compensated once its log has nothing left.
        """
        return await self._steps.boundary("undo_advance", hold, StepState.UNDONE, done=done, calls=calls, begin=begin)

    async def fail(self, hold: Hold, step: str, error: Json) -> WriteResult:
        """The undo of a step was refused for good: CompensationFailed with an alert."""
        said = {"step": step, "error": json.dumps(error)}
        return await self._steps.end(
            "undo_fail", hold, said, EventKind.UNDO_FAILED, AttemptEnd.UNDO_FAILED, error["message"]
        )
