"""Writers that are people: they ask for undo, resubmit, and repair the compensation log."""

from __future__ import annotations

from domain.states import EventKind, StepState, TaskState, UndoState
from tests.property.model.rows import Told
from tests.property.model.task import Task

_T, _S, _U, _K = TaskState, StepState, UndoState, EventKind
PERSON = "anna"


def request_undo(task: Task, *, holder: str | None, definition: str | None) -> Told:
    """Undo is asked for, whoever holds the task; or only while that attempt does."""
    if not task.confirmed or definition not in (None, task.definition.name):
        return Told("not_found")
    if task.state in (_T.COMPENSATING, _T.COMPENSATED):
        return Told("already")
    if holder is not None and not (task.held and task.attempt == holder):
        return Told("not_holder")
    if task.past_pivot:
        return Told("past_pivot")
    if task.state is _T.COMPENSATION_FAILED:
        for name, step in task.steps.items():
            if step.state is not _S.UNDONE:
                granted = Task(task.task_id, task.definition).steps[name].undo_budget
                step.undo_budget += granted - step.undo_budget_left
                step.undo_budget_left, step.failures, step.gave_up = granted, 0, False
        for entry in task.log:
            entry.state = _U.LOGGED if entry.state is _U.SKIPPED else entry.state
            entry.generation += entry.state.is_open
    task.failures = task.in_vain = 0
    task.let_go(due=task.may_be_undone_now)
    task.move(_K.UNDO_REQUESTED, PERSON, _T.COMPENSATING)
    return Told("accepted")


def resubmit(task: Task, *, corrected: bool = False) -> Told:
    """Error to Pending: fresh budget; a new key only where it is proved that no effect exists."""
    if task.state is not _T.ERROR:
        return Told("no")
    for name, step in task.steps.items():
        if step.state is not _S.COMPLETED:
            granted = task.definition.step(name).budget
            step.budget += granted - step.budget_left
            step.budget_left, step.failures, step.gave_up = granted, 0, False
            step.generation += step.state is _S.FAILED and not step.unknown
    task.failures = task.in_vain = 0
    task.let_go()
    task.move(_K.RESUBMITTED, PERSON, _T.PENDING)
    return Told("yes")


def repair_undo(task: Task, *, step: str, to: UndoState) -> Told:
    """A person skips an undo, or says that it was done by hand: not while the step's own call may be on its way."""
    found, entry = task.steps[step], task.entry(step)
    may = task.state in (_T.COMPENSATING, _T.COMPENSATION_FAILED) and not task.held
    if entry is None or not may:
        return Told("no")
    closed = to is _U.CLOSED_BY_HAND
    if not (entry.state.is_open or (closed and entry.state is _U.SKIPPED)):
        return Told("no")
    if closed and not (found.completed or found.overdue):
        return Told("no")
    calls_were_over = task.calls_are_over  # those of the step that is closed included
    if task.state is _T.COMPENSATION_FAILED:
        for other in task.log:
            other.generation += other is not entry and other.state.is_open
    entry.state = to
    if closed or found.state is _S.UNDOING:
        found.state, found.reserved, found.gave_up = _S.UNDONE if closed else _S.UNDO_FAILED, 0, False
    task.failures = task.in_vain = 0
    task.let_go(due=calls_were_over and not task.is_in_quarantine)
    task.move(_K.UNDO_REPAIRED, PERSON, _T.COMPENSATING)
    return Told("yes")
