"""Writers of a run: each may write only while its attempt holds the task, and most only in time."""

from __future__ import annotations

from typing import Literal

from domain.attempts import AttemptEnd
from domain.messages import Json
from domain.states import EventKind, StepState, TaskState, UndoState
from store.claims import Hold
from tests.property.model.rows import Entry, Told
from tests.property.model.task import Task

_T, _S, _U, _K = TaskState, StepState, UndoState, EventKind


def advance(
    task: Task,
    hold: Hold,
    *,
    done: str | None = None,
    result: Json | None = None,
    calls: int | None = None,
    begin: str | None = None,
) -> Told:
    """One boundary of a forward run: `done` is Completed with its result, `begin` is Running."""
    completed = begun = False
    if task.is_mine(hold, _T.PROCESSING):
        completed = task.has_begun_by(done, _S.RUNNING)
        if done and completed:
            task.steps[done].finish(_S.COMPLETED, calls)
            task.steps[done].result = result
            task.in_vain = 0
        begun = begin is not None and (completed or done is None) and task.begin(begin)
    if completed or begun:
        task.run_id = hold.run_id
        if all(s.state is _S.COMPLETED for s in task.steps.values()):
            task.let_go()
            task.failures = 0
            task.move(_K.PROCESSED, hold.locked_by, _T.PROCESSED)
        else:
            task.move(_K.ADVANCED, hold.locked_by)
    return _told(task, hold, done, begin, begun, _S.COMPLETED)


def undo_advance(
    task: Task, hold: Hold, *, done: str | None = None, calls: int | None = None, begin: str | None = None
) -> Told:
    """One boundary of an undo run, which undoes what began last first; without tombstones, again after a quarantine."""
    undone = begun = False
    if task.is_mine(hold, _T.COMPENSATING):
        entry = task.entry(done)
        if entry and entry.state is _U.UNDOING and _is_to_wait(task, entry):
            task.steps[entry.step].finish(_S.UNDOING, calls)
            task.in_vain = 0
            entry.quarantined = entry.waits = True
            entry.generation += 1
            task.let_go(due=False)
            task.move(_K.UNDO_ADVANCED, hold.locked_by)
            return Told(AttemptEnd.RELEASED)
        undone = entry is not None and entry.state is _U.UNDOING
        if entry and undone:
            task.steps[entry.step].finish(_S.UNDONE, calls)
            task.in_vain = 0
            entry.state = _U.UNDONE
        left = task.next_undo
        begun = begin is not None and begin == left and (undone or done is None) and task.begin_undo(begin)
        if left is None:
            task.let_go()
            skipped = any(e.state is _U.SKIPPED for e in task.log)
            end = (_K.UNDO_FAILED, _T.COMPENSATION_FAILED) if skipped else (_K.COMPENSATED, _T.COMPENSATED)
            task.move(end[0], hold.locked_by, end[1])
        elif undone or begun:
            task.run_id = hold.run_id
            task.move(_K.UNDO_ADVANCED, hold.locked_by)
    return _told(task, hold, done, begin, begun, _S.UNDONE)


def fail(task: Task, hold: Hold, *, step: str, unknown: bool | None, then: Literal["undo", "error"]) -> Told:
    """A permanent fault: at once Error, or undo where the policy says so and no pivot stands in the way.

    Without a word on `unknown` this attempt has sent nothing, and what is on record of earlier ones counts.
    """
    found = task.steps[step]
    if task.is_mine(hold, _T.PROCESSING):
        if found.state in (_S.NOT_STARTED, _S.RUNNING, _S.FAILED):
            before = found.state is _S.RUNNING and found.epoch != task.epoch and found.reserved > 0
            found.refuse(_S.FAILED if found.state is _S.RUNNING else found.state)
            found.unknown = found.unknown or before if unknown is None else unknown
        task.failures += 1
        task.in_vain = 0
        task.let_go(due=task.may_be_undone_now)
        undo = then == "undo" and not task.past_pivot
        task.move(_K.FAILED, hold.locked_by, _T.COMPENSATING if undo else _T.ERROR)
    return task.unless_said(hold, _K.FAILED, AttemptEnd.PERMANENT_FAULT)


def undo_fail(task: Task, hold: Hold, *, step: str) -> Told:
    """An undo was refused for good: what comes behind it is not tried."""
    found, entry = task.steps[step], task.entry(step)
    if task.is_mine(hold, _T.COMPENSATING):
        if found.state is not _S.UNDONE:
            reserved, begun = found.reserved, found.state is _S.UNDOING
            found.refuse(_S.UNDO_FAILED if begun else found.state)
            found.reserved = 0 if begun else reserved
        if entry and entry.state in (_U.LOGGED, _U.UNDOING, _U.FAILED):
            entry.state = _U.FAILED
        task.failures += 1
        task.let_go()
        task.move(_K.UNDO_FAILED, hold.locked_by, _T.COMPENSATION_FAILED)
    return task.unless_said(hold, _K.UNDO_FAILED, AttemptEnd.UNDO_FAILED)


def give_up(task: Task, hold: Hold, *, step: str) -> Told:
    """The calls are spent: the deadline of the task is now, that of the step stays."""
    if task.is_mine(hold, _T.PROCESSING, _T.COMPENSATING):
        task.steps[step].gave_up = task.late = True
        task.run_id = hold.run_id
        task.move(_K.GAVE_UP, hold.locked_by)
    return task.unless_said(hold, _K.GAVE_UP, AttemptEnd.GAVE_UP)


def release(task: Task, hold: Hold, *, step: str | None, sent: int | None, delay_s: float) -> Told:
    """The holder gives the row back, in time or not; what was certainly not sent returns."""
    if task.is_held_by(hold):
        if step is not None and step in task.at_work and sent is not None:
            unsent = max(0, task.steps[step].reserved - sent)
            task.steps[step].give_back(unsent)
            task.steps[step].reserved -= unsent
        if task.state is _T.PROCESSING:
            for other in set(task.at_work) - {step}:
                task.steps[other].grant()
        task.give_back(hold, delay_s)
    return task.unless_said(hold, _K.RELEASED, AttemptEnd.RELEASED)


def _is_to_wait(task: Task, entry: Entry) -> bool:
    """Whether an undo that was just done is to be done again after a quarantine."""
    terms = task.definition.step(entry.step).undo
    return bool(terms and terms.quarantine) and not entry.quarantined


def _told(  # noqa: PLR0911 (one return an outcome)
    task: Task, hold: Hold, done: str | None, begin: str | None, begun: bool, finished: StepState
) -> Told:
    """What follows for a run from the rows as they now are, whether it wrote them just now or before."""
    undo, result = finished is _S.UNDONE, task.steps[done].result if done else None
    if undo and done and task.epoch == hold.epoch and not task.held and _waits(task, done):
        return Told(AttemptEnd.RELEASED)
    if task.epoch != hold.epoch or (done and task.steps[done].state is not finished):
        return task.lost(hold)
    if task.state in (_T.PROCESSED, _T.COMPENSATED):
        return Told(AttemptEnd(task.state), result=task.steps[begin].result if begin and not done else result)
    if undo and task.state is _T.COMPENSATION_FAILED:
        return Told(AttemptEnd.UNDO_FAILED)
    if not task.is_held_by(hold) or task.late:
        return task.lost(hold)
    if begin and begun:
        return Told(calls=task.steps[begin].reserved, result=result)
    return Told(result=result) if done or not begin else _not_begun(task, hold, begin, finished)


def _not_begun(task: Task, hold: Hold, begin: str, finished: StepState) -> Told:
    """What follows for a run that could not begin a step by itself."""
    step, undo = task.steps[begin], finished is _S.UNDONE
    if step.state is finished:
        return Told(result=step.result or {})
    if task.is_blocked(begin, undo=undo):
        return release(task, hold, step=None, sent=0, delay_s=1)
    spent = step.undo_budget_left == 0 if undo else step.budget_left == 0
    return give_up(task, hold, step=begin) if spent else Told(AttemptEnd.SUPERSEDED)


def _waits(task: Task, step: str) -> bool:
    entry = task.entry(step)
    return entry is not None and entry.waits and entry.state.is_open
