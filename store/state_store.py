"""The state store as the Scheduler sees it: one method a transition, each a compare-and-set in one round trip.

Every transition locks the task's row, runs its statement, and reads the task back, in one transaction. Where the
statement changed nothing, the snapshot tells why: the row already says what was to be written (an acknowledgement was
lost, or the work was run twice), or it is no longer the caller's. Repeating any of these is safe.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from domain.attempts import AttemptEnd, BeginStep, WriteResult
from domain.ids import attempt_id
from domain.messages import Grant, Json
from domain.states import CLAIMABLE, EventKind, StepState, TaskState, UndoState
from domain.undo_requests import UndoRequest, UndoVerdict
from store.database import BeforeCommit, Database, Params, query
from store.snapshot import Snapshot, StepRow

_BLOCKED = timedelta(seconds=1)
"""Pause of a task whose holder met an open breaker; from then on the claim passes it over by itself."""

_PAGE_BYTES = 1_000_000
"""Of results that are read at once: they go into one message to Temporal, which takes 2 MB."""

_LONGEST_PAUSE = timedelta(minutes=5)
"""Of a task whose claims end in one and the same fault again and again."""

CHANNEL = "task_claimable"
"""On which the database tells dispatchers that a task may be claimed, now or later: its state."""


@dataclass(frozen=True)
class Hold:
    """Who writes: an attempt, and the Temporal run that carries it out; `nonce`: of the claim that started it."""

    task_id: str
    locked_by: str
    run_id: str
    nonce: str

    @property
    def epoch(self) -> int:
        """Epoch of the attempt."""
        return int(self.locked_by.rsplit("/", 1)[1])

    def holds(self, task: Snapshot) -> bool:
        """Whether this run holds the task, in time or not; one not yet bound to it knows the nonce of its claim."""
        bound = task.run_id == self.run_id or (task.run_id is None and task.claim_nonce == self.nonce)
        return bound and task.locked_by == self.locked_by

    @property
    def params(self) -> dict[str, Any]:
        """As parameters of a guarded statement."""
        return {"task_id": self.task_id, "locked_by": self.locked_by, "run_id": self.run_id, "nonce": self.nonce}


@dataclass(frozen=True)
class Claim:
    """A task that was claimed."""

    task: Snapshot

    @property
    def locked_by(self) -> str:
        """Workflow id of the attempt that was claimed."""
        return attempt_id(self.task.definition, self.task.task_id, self.task.epoch)

    def hold(self, run_id: str) -> Hold:
        """As the run that it started."""
        return Hold(self.task.task_id, self.locked_by, run_id, self.task.claim_nonce or "")


class StateStore:
    """Transitions of tasks and steps, as the application's role.

    `on_settled` is called whenever a write of this process has let go of a task, or lets it wait: a slot is free.
    """

    def __init__(self, database: Database, *, claim_within: timedelta = timedelta(seconds=10)) -> None:
        self.database = database
        self.on_settled: Callable[[], None] = lambda: None
        self._claim_within = {"claim_within_s": claim_within.total_seconds()}

    # --- claims -----------------------------------------------------------------------------------------------

    async def claim(
        self,
        worker: str,
        loaded: Sequence[tuple[str, int]],
        slots: int,
        task_ids: Sequence[str] | None = None,
        *,
        states: Sequence[TaskState] = CLAIMABLE,
    ) -> list[Claim]:
        """Claim for `worker`, which has the definitions `loaded`, as many tasks as are free of its `slots`.

        `states`: to go forward, to be undone, or both; with `task_ids`, none but those.
        """
        params = {
            "worker": worker,
            "slots": slots,
            "task_ids": None if task_ids is None else list(task_ids),
            **_wanted(loaded, states),
            **self._claim_within,
        }
        claimed = {(r["task_id"], r["epoch"]) for r in await self.database.rows(query("claim"), params)}
        if not claimed:
            return []
        found = await self.snapshots([task_id for task_id, _ in claimed])
        return [Claim(s) for s in found if (s.task_id, s.epoch) in claimed and s.locked_by is not None]

    async def count_held(self, worker: str) -> int:
        """How many tasks fill a worker's slots: claimed, not settled or given back, nor waiting for a later answer."""
        rows = await self.database.rows(
            "SELECT count(*) AS held FROM task WHERE worker = %(worker)s AND locked_by IS NOT NULL AND NOT waiting",
            {"worker": worker},
        )
        return int(rows[0]["held"])

    async def next_due(self, loaded: Sequence[tuple[str, int]], states: Sequence[TaskState]) -> timedelta | None:
        """How long until the next task is due that could be claimed then; None if none waits for its time."""
        (row,) = await self.database.rows(query("next_due"), _wanted(loaded, states))
        return None if row["due_in_s"] is None else timedelta(seconds=row["due_in_s"])

    async def not_started(
        self, claim: Claim, cause: str, *, fault: str | None = None, pause: timedelta, most: int | None = None
    ) -> None:
        """Give a claim back whose run did not start, or may not have: only if none has bound itself yet.

        Args:
            claim: Whose. cause: for people.
            fault: What kind of fault it is, if it is one of this very task: each in a row doubles the pause.
            pause: Before the next claim.
            most: So many of one fault in a row end the task: Error, or CompensationFailed for an undo, with an alert.
        """
        terms = {"fault": fault, "delay_s": pause.total_seconds(), "longest_s": _LONGEST_PAUSE.total_seconds()}
        await self._transition("not_started", {**claim.hold("").params, **terms, "cause": cause, "most": most})

    async def snapshots(self, task_ids: Sequence[str]) -> list[Snapshot]:
        """The tasks of those ids, as they are now; unknown ids are left out."""
        _, rows = await self.database.transaction(*[_read(t) for t in task_ids])
        return [Snapshot.model_validate(r[0]) for r in rows if r]

    async def results(self, task_id: str, steps: Sequence[str]) -> dict[str, Json]:
        """Recorded results of these steps, as many as one message should carry, but one at least; none that is gone."""
        params = {"task_id": task_id, "steps": list(steps), "most_bytes": _PAGE_BYTES}
        return {r["name"]: r["result"] for r in await self.database.rows(query("results"), params)}

    async def snapshot(self, task_id: str) -> Snapshot | None:
        """One task, as it is now."""
        return next(iter(await self.snapshots([task_id])), None)

    # --- forward ----------------------------------------------------------------------------------------------

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
        return await self._boundary("advance", hold, done, begin, calls, result)

    async def fail(
        self, hold: Hold, step: str, error: Json, *, unknown: bool | None, then: Literal["undo", "error"]
    ) -> WriteResult:
        """Record a permanent fault at once: Error with an alert, or Compensating.

        `unknown`: a call of this attempt or an earlier one may have been done all the same; the Agent knows, as it was
        told with the grant. None: this attempt sent none, and of earlier ones it is as on record; the step need not
        have begun.
        """
        said = {"step": step, "error": json.dumps(error), "unknown": unknown, "then": then}
        return await self._once("fail", hold, said, EventKind.FAILED, AttemptEnd.PERMANENT_FAULT, error["message"])

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
        return await self._once("give_up", hold, said, EventKind.GAVE_UP, AttemptEnd.GAVE_UP, cause)

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
        return await self._once("release", hold, said, EventKind.RELEASED, AttemptEnd.RELEASED, cause)

    async def note_late(self, task_id: str, step: str, answer: Json, *, actor: str) -> None:
        """Keep an answer that came too late as evidence, once an actor and step; nothing else changes."""
        key = {"task_id": task_id}
        params = {**key, "actor": actor, "step": step, "answer": json.dumps(answer)}
        await self.database.transaction((query("lock"), key), (query("late_answer"), params))

    # --- undo -------------------------------------------------------------------------------------------------

    async def request_undo(self, request: UndoRequest) -> UndoVerdict:
        """Ask for the undo of a task: one statement for every way of asking."""
        asked = request.model_dump(exclude={"heard"})
        return _verdict(request, *await self._on_request("request_undo", EventKind.UNDO_REQUESTED, asked))

    async def undo_advance(
        self, hold: Hold, *, done: str | None = None, calls: int | None = None, begin: BeginStep | None = None
    ) -> WriteResult:
        """Write one boundary of an undo run; the task is Compensated once its log has nothing left."""
        return await self._boundary("undo_advance", hold, done, begin, calls, None)

    async def undo_fail(self, hold: Hold, step: str, error: Json) -> WriteResult:
        """The undo of a step was refused for good: CompensationFailed with an alert."""
        said = {"step": step, "error": json.dumps(error)}
        return await self._once(
            "undo_fail", hold, said, EventKind.UNDO_FAILED, AttemptEnd.UNDO_FAILED, error["message"]
        )

    # --- people -----------------------------------------------------------------------------------------------

    async def resubmit(
        self,
        task_id: str,
        *,
        requester: str,
        reason: str,
        changes: Json,
        amend: Callable[[], Awaitable[object]] | None = None,
        no_effect: str | None = None,
        evidence: str | None = None,
    ) -> tuple[bool, Snapshot | None]:
        """Error back to Pending, with counts reset and a fresh budget.

        Args:
            task_id: A task in Error. requester: who says so; reason: why.
            changes: What is corrected in its business record, for the audit trail.
            amend: Corrects the record, and changes nothing when it is awaited again. It is awaited before the COMMIT if
                the task moves: so nobody else moves it meanwhile, and it stays in Error if this raises.
            no_effect: A step whose calls of unknown outcome had no effect, as the person has seen: it gets a new key.
            evidence: What shows that.

        Returns:
            Whether it moved, and the task.
        """
        asked = {
            "task_id": task_id,
            "requester": requester,
            "reason": reason,
            "changes": json.dumps(changes),
            "no_effect": no_effect,
            "evidence": evidence,
        }
        before_commit = _if_it_moves(amend) if amend else None
        return await self._on_request("resubmit", EventKind.RESUBMITTED, asked, before_commit)

    async def repair_undo(
        self, task_id: str, step: str, target: UndoState, *, requester: str, reason: str, evidence: str | None = None
    ) -> tuple[bool, Snapshot | None]:
        """A person skips an entry of the compensation log, or closes it as undone by hand, with evidence.

        Args:
            task_id: A task that is Compensating, held by nobody, or CompensationFailed.
            step: Whose entry. target: `SKIPPED` or `CLOSED_BY_HAND`.
            requester: Who says so; reason: why; evidence: what shows that nothing is left, for `CLOSED_BY_HAND`.

        Returns:
            Whether it was accepted, and the task.
        """
        asked = {
            "task_id": task_id,
            "step": step,
            "target": target.value,
            "requester": requester,
            "reason": reason,
            "evidence": evidence,
        }
        return await self._on_request("repair_undo", EventKind.UNDO_REPAIRED, asked)

    # --- inside -----------------------------------------------------------------------------------------------

    async def _transition(
        self,
        name: str,
        params: Params,
        *,
        before_commit: BeforeCommit | None = None,
        result_of: str | None = None,
        body_of: str | None = None,
    ) -> tuple[int, Snapshot | None]:
        """Lock, write, read back."""
        key = {"task_id": params["task_id"]}
        counts, rows = await self.database.transaction(
            (query("lock"), key),
            (query(name), params),
            _read(params["task_id"], result_of, body_of),
            before_commit=before_commit,
        )
        after = Snapshot.model_validate(rows[2][0]) if rows[2] else None
        if after is None or after.locked_by is None or after.waiting:
            self.on_settled()
        return counts[1], after

    async def _was_written(self, task_id: str, kind: EventKind, actor: str, request: str | None = None) -> bool:
        """Whether a write that changed nothing had been committed before: then its acknowledgement was lost.

        An attempt releases, or gives up, once; a person's request has an id of its own.
        """
        rows = await self.database.rows(
            "SELECT 1 FROM event WHERE task_id = %(task_id)s AND kind = %(kind)s AND actor = %(actor)s"
            " AND (%(request)s::text IS NULL OR detail ->> 'request' = %(request)s) LIMIT 1",
            {"task_id": task_id, "kind": kind.value, "actor": actor, "request": request},
        )
        return bool(rows)

    async def _on_request(
        self, name: str, kind: EventKind, asked: Params, before_commit: BeforeCommit | None = None
    ) -> tuple[bool, Snapshot | None]:
        """Write what somebody asks for, once. Returns whether it moved the task, and the task."""
        token = uuid4().hex
        changed, after = await self._transition(name, {**asked, "request": token}, before_commit=before_commit)
        return bool(changed) or await self._was_written(asked["task_id"], kind, asked["requester"], token), after

    async def _once(
        self, name: str, hold: Hold, said: Params, kind: EventKind, end: AttemptEnd, cause: str
    ) -> WriteResult:
        """A write by which an attempt ends, which it makes once."""
        changed, after = await self._transition(name, {**hold.params, **said})
        if changed or await self._was_written(hold.task_id, kind, hold.locked_by):
            return _over(end, cause, after)
        return _lost(after, hold)

    async def _boundary(
        self,
        name: str,
        hold: Hold,
        done: str | None,
        begin: BeginStep | None,
        calls: int | None,
        result: Json | None,
    ) -> WriteResult:
        reservation = uuid4().hex
        params = {
            **hold.params,
            "done": done,
            "result": None if result is None else json.dumps(result),
            "calls": calls,
            "begin": begin.step if begin else None,
            "within_s": begin.within_s if begin else 0.0,
            "allowance": begin.calls if begin else 0,
            "reservation": reservation,
            "undo_action": begin.undo.action if begin and begin.undo else None,
            "undo_body": json.dumps(begin.undo.body) if begin and begin.undo else None,
            **self._claim_within,
        }
        about, undo = done or params["begin"], name == "undo_advance"
        body_of = params["begin"] if undo else None
        _, after = await self._transition(name, params, result_of=about, body_of=body_of)
        finished = StepState.UNDONE if undo else StepState.COMPLETED
        if after is None:
            return _lost(after, hold)
        if (over := _ended(after, hold, done, finished)) is not None:
            return over
        if begin is None:
            return WriteResult(result=after.result)
        step = after.step(begin.step)
        if step.reservation == reservation:
            return WriteResult(result=after.result if done else None, grant=_grant(step, after.body))
        if done is not None or step.state is finished:
            return WriteResult(result=after.result or {})  # what did not begin is begun again, or given up, by itself
        return await self._not_begun(hold, after, step, undo=undo)

    async def _not_begun(self, hold: Hold, after: Snapshot, step: StepRow, *, undo: bool) -> WriteResult:
        """End an attempt whose next step could not begin: for want of its service, or of calls."""
        if after.blocks(step.name, undo=undo):
            cause = f"step {step.name} waits: the breaker of its service is open"
            return await self.release(hold, cause, sent=0, delay=_BLOCKED)
        if (step.undo_budget_left if undo else step.budget_left) == 0:
            return await self.give_up(hold, step.name, f"step {step.name}: the budget of calls is spent")
        return _over(AttemptEnd.SUPERSEDED, f"step {step.name} is {step.state} and could not begin", after)


def _wanted(loaded: Sequence[tuple[str, int]], states: Sequence[TaskState]) -> Params:
    return {
        "definitions": [name for name, _ in loaded],
        "versions": [version for _, version in loaded],
        "states": [state.value for state in states],
    }


def _read(task_id: str, result_of: str | None = None, body_of: str | None = None) -> tuple[str, Params]:
    return query("snapshot"), {"task_id": task_id, "result_of": result_of, "body_of": body_of}


def _grant(step: StepRow, body: Json | None) -> Grant:
    within_s = max(0.0, step.time_left_s or 0.0)
    return Grant(calls=step.reserved, within_s=within_s, unknown=step.unknown, key_age_s=step.key_age_s, body=body)


def _over(end: AttemptEnd, cause: str, after: Snapshot | None, result: Json | None = None) -> WriteResult:
    """How an attempt ends, with what the store says of the steps."""
    steps = {s.name: s.state for s in after.steps} if after else {}
    return WriteResult(end=end, cause=cause, steps=steps, result=result)


def _ended(after: Snapshot, hold: Hold, done: str | None, finished: StepState) -> WriteResult | None:
    """How the attempt ends behind a boundary; None if it goes on."""
    if after.epoch != hold.epoch:
        return _lost(after, hold)
    if done is not None and after.step(done).state is not finished:
        return _unfinished(after, hold, done)
    if finished is StepState.UNDONE and after.state is TaskState.COMPENSATION_FAILED:
        return _over(AttemptEnd.UNDO_FAILED, "an entry could not be undone, or a person has skipped it", after)
    ends = {TaskState.PROCESSED: AttemptEnd.PROCESSED, TaskState.COMPENSATED: AttemptEnd.COMPENSATED}
    if after.state in ends:
        return _over(ends[after.state], "", after, after.result)
    return None if hold.holds(after) and (after.time_left_s or 0) > 0 else _lost(after, hold)


def _unfinished(after: Snapshot, hold: Hold, done: str) -> WriteResult:
    """Why a boundary did not finish its step: its undo is to be done once more, or the hold was lost."""
    if after.locked_by is None and after.is_quarantined(done):
        return _over(AttemptEnd.RELEASED, f"the undo of step {done} is in quarantine", after)
    return _lost(after, hold)


def _lost(after: Snapshot | None, hold: Hold) -> WriteResult:
    """Why a guarded write changed nothing: it came late, or somebody else moved the task."""
    if after is None:
        return _over(AttemptEnd.SUPERSEDED, f"there is no task {hold.task_id}", after)
    if hold.holds(after):
        return _over(AttemptEnd.DEADLINE_PASSED, f"complete_by of {hold.locked_by} has passed", after)
    if after.epoch == hold.epoch and after.locked_by is None and after.state is TaskState.COMPENSATING:
        return _over(AttemptEnd.UNDO_REQUESTED, "the task is to be undone", after)
    holder = after.locked_by or "nobody"
    return _over(AttemptEnd.SUPERSEDED, f"task {after.task_id} is {after.state}, held by {holder}", after)


def _verdict(request: UndoRequest, moved: bool, after: Snapshot | None) -> UndoVerdict:
    task_id = request.task_id
    if after is None or request.definition not in (None, after.definition):
        what = f"{request.definition or 'task'} {task_id}"
        return UndoVerdict(verdict="not_found", task_id=task_id, message=f"there is no {what}")
    verdict = partial(UndoVerdict, task_id=task_id, state=after.state)
    if moved:
        return verdict(verdict="accepted", message="undo is asked for")
    if after.state in (TaskState.COMPENSATING, TaskState.COMPENSATED):
        return verdict(verdict="already", message=f"task {task_id} is {after.state} already")
    if request.holder is not None and after.locked_by != request.holder:
        return verdict(verdict="not_holder", message=f"task {task_id} is no longer held by {request.holder}")
    pivot = next((s.name for s in after.steps if s.pivot), "?")
    message = f"task {task_id} is past its pivot (step {pivot}): it can only go forward"
    return verdict(verdict="past_pivot", message=message)


def _if_it_moves(act: Callable[[], Awaitable[object]]) -> BeforeCommit:
    """Do something before the COMMIT of a transition, if that has changed the task."""

    async def before_commit(counts: Sequence[int]) -> None:
        if counts[1]:
            await act()

    return before_commit
