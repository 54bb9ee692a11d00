"""Writers that hold nothing: submission, the dispatcher, breakers, late answers; and time, which writes nothing."""

from __future__ import annotations

from domain.states import EventKind, StepState, TaskState
from store.claims import Hold
from store.housekeeping import HOUSEKEEPER
from store.submission import SUBMISSION
from tests.property.model.rows import Told
from tests.property.model.task import Task

_T, _S, _K = TaskState, StepState, EventKind
WORKER = "worker"


def submit(task: Task, *, same: bool) -> Told:
    """A submission of the same id: the pair is completed, or what contradicts the record is put aside, once."""
    if not same:
        task.alerts += ["dead_letter"] * ("dead_letter" not in task.alerts)
        return Told("DeadLettered")
    write_record(task)
    _confirm(task, SUBMISSION)
    return Told("Accepted")


def write_record(task: Task) -> Told:
    """A submitter writes the business record, and dies."""
    task.recorded, task.abandoned = True, False
    return Told()


def tidy(task: Task) -> Told:
    """A housekeeper that saw the row unconfirmed, whenever that was, confirms it or removes it."""
    if task.recorded:
        _confirm(task, HOUSEKEEPER)
    else:
        task.abandoned = task.gone = True
        task.alerts.append("submission_abandoned")
    return Told()


def _confirm(task: Task, actor: str) -> None:
    if not task.confirmed:
        task.confirmed = task.due = True
        task.move(_K.CONFIRMED, actor)


def claim(task: Task) -> Told:
    """A dispatcher takes what is due, and needs no service whose breaker is open: the epoch rises."""
    undo = task.state is _T.COMPENSATING
    if not (task.is_claimable and task.due) or task.is_blocked(task.following, undo=undo):
        return Told("nothing")
    task.epoch, task.held = task.epoch + 1, True
    task.move(_K.CLAIMED, WORKER, _T.PROCESSING if task.state is _T.PENDING else None)
    return Told(task.attempt)


def not_started(task: Task, hold: Hold, *, delay_s: float, most: int | None) -> Told:
    """The dispatcher gives a claim back whose run did not start: only while no run is bound; the last refusal ends it.

    `most`: refusals in a row; None: it was not refused.
    """
    if not (task.is_held_by(hold) and task.run_id is None):
        return Told()
    task.refusals += most is not None
    if most is None or task.refusals < most:
        task.give_back(hold, delay_s)
        return Told()
    forward = task.state is _T.PROCESSING
    task.failures += 1
    task.let_go(due=not delay_s)
    task.move(_K.FAILED if forward else _K.UNDO_FAILED, hold.locked_by, _T.ERROR if forward else _T.COMPENSATION_FAILED)
    return Told()


def time_passes(task: Task, *, steps: list[str]) -> Told:
    """The deadlines of a held task and of these steps pass; what waits is due."""
    task.late, task.due = task.held, True
    for name in steps:
        task.steps[name].overdue = True
    for entry in task.log:
        entry.waits = False
    return Told()


def let_go(task: Task, *, service: str) -> Told:
    """The breaker of a service closes by a person's word: who waits for it goes at a pace, which tells nobody."""
    undo = task.state is _T.COMPENSATING
    if task.is_claimable and task.is_blocked(task.following, undo=undo) and service in task.broken:
        task.due = False
        task.move(_K.NOTED, "breaker")
    task.broken = task.broken - {service}
    return Told("nothing")


def breaker(task: Task, *, service: str, is_open: bool) -> Told:
    """The breaker of a service opens, or closes again."""
    task.broken = task.broken | {service} if is_open else task.broken - {service}
    return Told()


def late_answer(task: Task, *, actor: str, step: str) -> Told:
    """An answer that came too late is kept as evidence, once for each attempt and step."""
    if (actor, step) not in task.late_answers:
        task.late_answers.add((actor, step))
        task.move(_K.LATE_ANSWER, actor)
    return Told()
