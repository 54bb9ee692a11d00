"""The Supervisor: what it decides about a task that has expired, and how that is carried out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from domain.states import EventKind, TaskState
from tests.property.model.rows import Told
from tests.property.model.task import AT_WORK, Task

_T, _K = TaskState, EventKind
UNDO_THRESHOLD = 5
SUPERVISOR = "supervisor"


@dataclass(frozen=True)
class Decision:
    """What the Supervisor asks for, the attempt that it saw hold the task, and the last event that it saw."""

    locked_by: str
    last_event: int
    target: TaskState
    delay_s: float
    failed: tuple[str, ...]
    outage: bool


def decide(task: Task, *, outage: bool) -> Decision:
    """What follows for a task that has expired. `outage`: supervision itself was out meanwhile."""
    undo, terms = task.state is _T.COMPENSATING, task.definition
    left = {n: s.left + (s.reserved if outage and s.epoch == task.epoch else 0) for n, s in task.steps.items()}
    at_work = [s for s in task.steps.items() if s[1].state is AT_WORK[task.state]]
    failed = {n: s for n, s in at_work if (s.epoch == task.epoch or left[n] == 0) and (s.overdue or s.gave_up)}
    failures = max((s.failures for s in failed.values()), default=0) + (not outage)
    back, stop = (_T.COMPENSATING, _T.COMPENSATION_FAILED) if undo else (_T.PENDING, _T.ERROR)
    spent = stop if undo or task.past_pivot or terms.on_spent == "error" else _T.COMPENSATING
    waits = terms.extended_wait.times if terms.extended_wait and not undo else 0
    threshold = UNDO_THRESHOLD if undo else terms.threshold

    def to(target: TaskState, delay_s: float) -> Decision:
        counted = () if outage else tuple(failed)
        return Decision(task.attempt, len(task.events), target, delay_s, counted, outage)

    def pause(times: int, most: timedelta = terms.backoff.most) -> float:
        grown = terms.backoff.first * terms.backoff.factor ** max(0, times - 1)
        return min(grown, most).total_seconds()

    if not outage and task.in_vain + 1 >= terms.most_attempts:
        return to(stop, 0.0)
    if not failed:
        most = max(terms.backoff.most, timedelta(minutes=5))
        return to(back, pause(task.in_vain, most) if task.in_vain else 0.0)
    if any(left[n] == 0 for n in failed):
        return to(spent, 0.0)
    if outage or failures <= threshold:
        return to(back, pause(failures))
    if terms.extended_wait and failures <= threshold + waits:
        return to(back, terms.extended_wait.wait.total_seconds())
    return to(spent, 0.0)


def recover(task: Task, *, decision: Decision) -> Told:
    """Carry out a decision, if the attempt that was seen still holds the task, has written nothing, and is late."""
    seen = (decision.locked_by, decision.last_event)
    if not (task.held and task.late and seen == (task.attempt, len(task.events))):
        return Told("nothing")
    for name in decision.failed:
        task.steps[name].failures += 1
    for name in set(task.at_work) - set(decision.failed):
        task.steps[name].grant()
    task.failures += bool(decision.failed)
    task.in_vain += not decision.outage
    undo = decision.target is _T.COMPENSATING
    if decision.target not in (task.state, _T.PENDING):
        task.in_vain = 0
    task.let_go(due=not decision.delay_s and (task.may_be_undone_now or not undo))
    task.move(_K.EXPIRED, SUPERVISOR, decision.target)
    return Told("recovered")
