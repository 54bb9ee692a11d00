"""Writers that hold nothing: submission, the dispatcher, breakers, late answers; and time, which writes nothing."""

from __future__ import annotations

from domain.states import EventKind, StepState, TaskState
from store.claims import Hold
from store.housekeeping import HOUSEKEEPER
from store.submission import SUBMISSION
from tests.property.model.rows import Answer
from tests.property.model.task import Task

_T, _S, _K = TaskState, StepState, EventKind
WORKER = "worker"


def submit(task: Task, *, same: bool) -> Answer:
    """A submission of the same id: the pair is completed, or what contradicts the record is put aside, once."""
    if not same:
        task.alerts += ["dead_letter"] * ("dead_letter" not in task.alerts)
        return Answer("DeadLettered")
    write_record(task)
    _confirm(task, SUBMISSION)
    return Answer("Accepted")


def write_record(task: Task) -> Answer:
    """A submitter writes the business record, and dies."""
    task.recorded, task.abandoned = True, False
    return Answer()


def tidy(task: Task) -> Answer:
    """A housekeeper that saw the row unconfirmed, whenever that was, confirms it or removes it."""
    if task.recorded:
        _confirm(task, HOUSEKEEPER)
    else:
        task.abandoned = task.gone = True
        task.alerts.append("submission_abandoned")
    return Answer()


def _confirm(task: Task, actor: str) -> None:
    if not task.confirmed:
        task.confirmed = task.due = True
        task.move(_K.CONFIRMED, actor)


def claim(task: Task) -> Answer:
    """A dispatcher takes what is due, and needs no service whose breaker is open: the epoch rises."""
    undo = task.state is _T.COMPENSATING
    if not (task.is_claimable and task.due) or task.is_blocked(task.following, undo=undo):
        return Answer("nothing")
    task.epoch, task.held = task.epoch + 1, True
    task.move(_K.CLAIMED, WORKER, _T.PROCESSING if task.state is _T.PENDING else None)
    return Answer(task.attempt)


def not_started(task: Task, hold: Hold, *, delay_s: float, most: int | None) -> Answer:
    """The dispatcher gives a claim back whose run did not start: only while no run is bound; the last refusal ends it.

    `most`: refusals in a row; None: it was not refused.
    """
    if not (task.is_held_by(hold) and task.run_id is None):
        return Answer()
    task.refusals += most is not None
    if most is None or task.refusals < most:
        task.give_back(hold, delay_s)
        return Answer()
    forward = task.state is _T.PROCESSING
    task.failures += 1
    task.let_go(due=not delay_s)
    task.move(_K.FAILED if forward else _K.UNDO_FAILED, hold.locked_by, _T.ERROR if forward else _T.COMPENSATION_FAILED)
    return Answer()


def time_passes(task: Task, *, steps: list[str]) -> Answer:
    """The deadlines of a held task and of these steps pass; what waits is due."""
    task.late, task.due = task.held, True
    for name in steps:
        task.steps[name].overdue = True
    for entry in task.log:
        entry.waits = False
    return Answer()


def let_go(task: Task, *, service: str) -> Answer:
    """The breaker of a service closes by a person's word: who waits for it goes at a pace, which tells nobody."""
    undo = task.state is _T.COMPENSATING
    if task.is_claimable and task.is_blocked(task.following, undo=undo) and service in task.broken:
        task.due = False
        task.move(_K.NOTED, "breaker")
    task.broken = task.broken - {service}
    return Answer("nothing")


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
