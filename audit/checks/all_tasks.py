"""What only all tasks together can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from audit.evidence import COMMITTED_WITHIN, Evidence
from audit.task import AuditedTask, EventRow
from domain.states import EventKind, TaskState
from store.admission import AdmissionCaps

_FOREVER = datetime.max.replace(tzinfo=UTC)
_IN_FLIGHT = (TaskState.PENDING, TaskState.PROCESSING)

OfTask = tuple[str, str]
"""A task's id, and what does not hold of it."""


@dataclass(frozen=True, order=True)
class CountChange:
    """What a task did to the counts of its definition that admission looks at.

    `submitted`: its id, where it was taken in just then.

    `order`: at one instant, who leaves goes first, then who is taken in is checked, then who enters is counted.
    """

    at: datetime
    order: int
    definition: str
    in_flight: int = 0
    pending: int = 0
    submitted: str = ""


@dataclass
class AllTasks:
    """What has been seen of all tasks. `orphans`: open business records without a task."""

    evidence: Evidence
    task_ids: set[str] = field(default_factory=set)
    changes: list[CountChange] = field(default_factory=list)
    orphans: Sequence[str] = ()

    def add(self, task: AuditedTask) -> None:
        """Take one task in."""
        self.task_ids.add(task.row.task_id)
        if self.evidence.caps is not None:
            self.changes += _changes(task)


def acknowledged_task_is_there(tasks: AllTasks) -> Iterator[OfTask]:
    """Nothing acknowledged is lost: every submission that was ever accepted has its task."""
    replies = tasks.evidence.replies
    for task_id, told in sorted(replies.by_task.items()) if replies else ():
        if task_id not in tasks.task_ids and any(r.verdict == "accepted" for r in told):
            yield task_id, "its submission was accepted, and there is no such task"


def effect_belongs_to_a_task(tasks: AllTasks) -> Iterator[OfTask]:
    """All or nothing: no service did anything for a task that is not there."""
    ledgers = tasks.evidence.ledgers
    for task_id, services in sorted(ledgers.by_task.items()) if ledgers else ():
        if task_id not in tasks.task_ids:
            for service, ledger in services.items():
                yield from ((task_id, f"{service} has effect {e.key}, there is no such task") for e in ledger.effects)


def run_belongs_to_a_task(tasks: AllTasks) -> Iterator[OfTask]:
    """Fenced: no attempt was run at a task that is not there."""
    runs = tasks.evidence.runs
    for task_id, found in sorted(runs.by_task.items()) if runs else ():
        if task_id not in tasks.task_ids:
            yield from ((task_id, f"{run.workflow_id} has a run, there is no such task") for run in found)


def record_belongs_to_a_task(tasks: AllTasks) -> Iterator[OfTask]:
    """Nothing lost: a business record that is not closed has its state row, which came first."""
    yield from ((task_id, "it has a business record, and no row in the state store") for task_id in tasks.orphans)


def admission_caps_held(tasks: AllTasks) -> Iterator[OfTask]:
    """Caps are checked at insert: the counts of its definition were below them then, as the events tell.

    What may not have been committed yet is not counted, so nothing is called a violation that the insert did not see.
    The cap on the age of the oldest pending task is not checked.
    """
    caps = tasks.evidence.caps
    in_flight, pending = Counter[str](), Counter[str]()
    for change in sorted(tasks.changes):
        name = change.definition
        if change.submitted and caps and (over := _over(caps, in_flight[name], pending[name])):
            yield change.submitted, f"it was taken in with {over}"
        in_flight[name] += change.in_flight
        pending[name] += change.pending


def _over(caps: AdmissionCaps, in_flight: int, pending: int) -> str:
    words = []
    if in_flight >= caps.in_flight:
        words.append(f"{in_flight} tasks of its definition in flight, the cap is {caps.in_flight}")
    if pending >= caps.pending:
        words.append(f"{pending} of them pending, the cap is {caps.pending}")
    return "; ".join(words)


def _changes(task: AuditedTask) -> Iterator[CountChange]:
    """What each event of a task did to the counts, for certain."""
    definition = task.row.definition
    for event in task.events:
        if event.kind is EventKind.SUBMITTED:
            yield CountChange(event.at, 1, definition, submitted=task.row.task_id)
    for entered, left in _stays(task.events, _IN_FLIGHT):
        yield CountChange(entered, 2, definition, in_flight=1)
        yield CountChange(left, 0, definition, in_flight=-1)
    for entered, left in _stays(task.events, (TaskState.PENDING,)):
        yield CountChange(entered, 2, definition, pending=1)
        yield CountChange(left, 0, definition, pending=-1)


def _stays(events: Sequence[EventRow], counted: Sequence[TaskState]) -> Iterator[tuple[datetime, datetime]]:
    """From when to when the task was in one of these states. The insert of a task is seen by the next at once."""
    entered: datetime | None = None
    for event in events:
        if event.state_to in counted and entered is None:
            entered = event.at if event.kind is EventKind.SUBMITTED else event.at + COMMITTED_WITHIN
        elif event.state_to not in counted and entered is not None:
            if entered < event.at:
                yield entered, event.at
            entered = None
    if entered is not None:
        yield entered, _FOREVER
