"""What a lock owner is told of a guarded write, judged by the task as it is then: how its attempt ends, or goes on."""

from __future__ import annotations

from domain.attempts import AttemptEnd, WriteResult
from domain.messages import Grant, Json
from domain.states import StepState, TaskState
from store.claims import Hold
from store.snapshot import Snapshot, StepRow

_ENDS = {TaskState.PROCESSED: AttemptEnd.PROCESSED, TaskState.COMPENSATED: AttemptEnd.COMPENSATED}


def over(end: AttemptEnd, cause: str, after: Snapshot | None, result: Json | None = None) -> WriteResult:
    """How an attempt ends, with what the store says of the steps."""
    steps = {s.name: s.state for s in after.steps} if after else {}
    return WriteResult(end=end, cause=cause, steps=steps, result=result)


def ended(after: Snapshot, hold: Hold, done: str | None, finished: StepState) -> WriteResult | None:
    """How an attempt ends behind a boundary that left step `done` `finished`, or should have; None if it goes on."""
    if after.epoch != hold.epoch:
        return lost(after, hold)
    if done is not None and after.step(done).state is not finished:
        if after.locked_by is None and after.step(done).quarantined:
            return over(AttemptEnd.RELEASED, f"the undo of step {done} is in quarantine", after)
        return lost(after, hold)
    if after.state in _ENDS:
        return over(_ENDS[after.state], "", after, after.result)
    if finished is StepState.UNDONE and after.state is TaskState.COMPENSATION_FAILED:
        return over(AttemptEnd.UNDO_FAILED, "an entry could not be undone, or a person has skipped it", after)
    return None if hold.holds(after) and (after.time_left_s or 0) > 0 else lost(after, hold)


def lost(after: Snapshot | None, hold: Hold) -> WriteResult:
    """Why a guarded write changed nothing: it came late, or somebody else moved the task."""
    if after is None:
        return over(AttemptEnd.SUPERSEDED, f"there is no task {hold.task_id}", after)
    if hold.holds(after):
        return over(AttemptEnd.DEADLINE_PASSED, f"complete_by of {hold.locked_by} has passed", after)
    if after.epoch == hold.epoch and after.locked_by is None and after.state is TaskState.COMPENSATING:
        return over(AttemptEnd.UNDO_REQUESTED, "the task is to be undone", after)
    owner = after.locked_by or "nobody"
    return over(AttemptEnd.SUPERSEDED, f"task {after.task_id} is {after.state}, held by {owner}", after)


def granted(step: StepRow, after: Snapshot) -> Grant:
    """What a step that was begun may spend."""
    within_s = max(0.0, step.time_left_s or 0.0)
    return Grant(
        calls=step.reserved,
        within_s=within_s,
        unknown=step.unknown,
        key_age_s=step.key_age_s,
        body=after.body,
        original=after.original,
    )
