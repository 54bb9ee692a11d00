"""The Supervisor: what it decides about a task that has expired, and how that is carried out."""

from __future__ import annotations

from dataclasses import dataclass

from domain.states import EventKind, TaskState
from tests.property.model.rows import Answer
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


def decide(task: Task, *, counts: bool) -> Decision:
    """What follows for a task that has expired. `counts`: not where supervision itself was out."""
    undo, terms = task.state is _T.COMPENSATING, task.definition
    at_work = [s for s in task.steps.items() if s[1].state is AT_WORK[task.state]]
    failed = {n: s for n, s in at_work if (s.epoch == task.epoch or s.left == 0) and (s.overdue or s.gave_up)}
    counted = tuple(failed) if counts else ()
    failures = max((s.failures for s in failed.values()), default=0) + bool(counted)
    back, stop = (_T.COMPENSATING, _T.COMPENSATION_FAILED) if undo else (_T.PENDING, _T.ERROR)
    spent = stop if undo or task.past_pivot or terms.on_spent == "error" else _T.COMPENSATING
    waits = terms.extended_wait.times if terms.extended_wait and not undo else 0
    threshold = UNDO_THRESHOLD if undo else terms.threshold
    seen = task.attempt, len(task.events)
    if _expiries(task) + 1 >= terms.most_attempts:
        return Decision(*seen, stop, 0.0, counted)
    if not failed:
        again = terms.backoff.first * terms.backoff.factor ** (_expiries(task) - 1) if _expiries(task) else None
        return Decision(*seen, back, min(again, terms.backoff.most).total_seconds() if again else 0.0, ())
    if any(s.left == 0 for s in failed.values()):
        return Decision(*seen, spent, 0.0, counted)
    if failures <= threshold:
        pause = terms.backoff.first * terms.backoff.factor ** max(0, failures - 1)
        return Decision(*seen, back, min(pause, terms.backoff.most).total_seconds(), counted)
    if terms.extended_wait and failures <= threshold + waits:
        return Decision(*seen, back, terms.extended_wait.wait.total_seconds(), counted)
    return Decision(*seen, spent, 0.0, counted)


def recover(task: Task, *, decision: Decision) -> Answer:
    """Carry out a decision, if the attempt that was seen still holds the task, has written nothing, and is late."""
    seen = (decision.locked_by, decision.last_event)
    if not (task.held and task.late and seen == (task.attempt, len(task.events))):
        return Answer("nothing")
    for name in decision.failed:
        task.steps[name].failures += 1
    task.failures += bool(decision.failed)
    undo = decision.target is _T.COMPENSATING
    task.let_go(due=not decision.delay_s and (task.may_be_undone_now or not undo))
    task.move(_K.EXPIRED, SUPERVISOR, decision.target)
    return Answer("recovered")


def _expiries(task: Task) -> int:
    """How often it has expired since it was submitted, or a person last asked something of it."""
    kinds = [kind for kind, *_ in task.events]
    asked = [n for n, kind in enumerate(kinds) if kind in (_K.RESUBMITTED, _K.UNDO_REQUESTED, _K.UNDO_REPAIRED)]
    return kinds[max(asked, default=0) :].count(_K.EXPIRED)
