"""Writers that hold nothing: submission, the dispatcher, breakers, late answers; and time, which writes nothing."""

from __future__ import annotations

from domain.messages import End
from domain.states import EventKind, StepState, TaskState
from store.state_store import Hold
from tests.property.model.rows import Answer
from tests.property.model.task import Task

_T, _S, _K = TaskState, StepState, EventKind
WORKER = "worker"


def submit(task: Task, *, same: bool) -> Answer:
    """A submission of the same id: the pair is completed, or what contradicts the record is put aside."""
    if not same:
        task.alerts.append("dead_letter")
        return Answer("Conflict")
    if task.epoch > 0 and task.state in (_T.PENDING, _T.PROCESSING) and not task.has_begun:
        task.move(_K.NOTED, "submission")
    task.recorded, task.abandoned = True, False
    return Answer("Accepted")


def withdraw(task: Task, *, seen: int) -> Answer:
    """Remove a row whose business record never came, if event `seen` is still its last."""
    if task.recorded:
        return Answer("kept")
    task.abandoned = True
    if len(task.events) != seen or task.state is not _T.PENDING or task.has_begun:
        return Answer("kept")
    task.alerts.append("submission_abandoned")
    task.gone = True
    return Answer("removed")


def claim(task: Task) -> Answer:
    """A dispatcher takes what is due, and needs no service whose breaker is open: the epoch rises."""
    undo = task.state is _T.COMPENSATING
    following = (
        task.next_undo if undo else next((n for n, s in task.steps.items() if s.state is not _S.COMPLETED), None)
    )
    if not (task.is_claimable and task.due) or task.is_blocked(following, undo=undo):
        return Answer("nothing")
    task.epoch, task.held = task.epoch + 1, True
    task.move(_K.CLAIMED, WORKER, _T.PROCESSING if task.state is _T.PENDING else None)
    return Answer(task.attempt)


def release_unstarted(task: Task, hold: Hold, *, delay_s: float) -> Answer:
    """The dispatcher gives a claim back whose run may not have started: only while no run is bound."""
    if task.is_held_by(hold) and task.run_id is None:
        task.give_back(hold, delay_s)
    return task.unless_said(hold, _K.RELEASED, End.RELEASED)


def time_passes(task: Task, *, steps: list[str]) -> Answer:
    """The deadlines of a held task and of these steps pass; what waits is due."""
    task.late, task.due = task.held, True
    for name in steps:
        task.steps[name].overdue = True
    for entry in task.log:
        entry.waits = False
    return Answer()


def breaker(task: Task, *, service: str, is_open: bool) -> Answer:
    """The breaker of a service opens, or closes again."""
    task.broken = task.broken | {service} if is_open else task.broken - {service}
    return Answer()


def late_answer(task: Task, *, actor: str, step: str) -> Answer:
    """An answer that came too late is kept as evidence, once for each attempt and step."""
    if (actor, step) not in task.late_answers:
        task.late_answers.add((actor, step))
        task.move(_K.LATE_ANSWER, actor)
    return Answer()
