"""Invariants of all tasks together; they can be judged only when every task was looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from audit.evidence import COMMITTED, Caps, Witnesses
from audit.task_record import EventView, Picture
from domain.states import EventKind, TaskState

_FOREVER = datetime.max.replace(tzinfo=UTC)
_IN_FLIGHT = (TaskState.PENDING, TaskState.PROCESSING)

Finding = tuple[str, str]
"""A task's id, and what does not hold of it."""


@dataclass(frozen=True, order=True)
class Move:
    """What a task did to the counts of its definition that admission looks at.

    `submitted`: its id, where it was taken in just then.

    `order`: at one instant, who leaves goes first, then who is taken in is judged, then who enters is counted.
    """

    at: datetime
    order: int
    definition: str
    in_flight: int = 0
    pending: int = 0
    submitted: str = ""


@dataclass
class Whole:
    """What has been seen of all tasks. `strays`: business records without a task."""

    witnesses: Witnesses
    seen: set[str] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)
    strays: Sequence[str] = ()

    def add(self, picture: Picture) -> None:
        """Take one task in."""
        self.seen.add(picture.task.task_id)
        if self.witnesses.caps is not None:
            self.moves += _moves(picture)


def acknowledged_task_is_there(whole: Whole) -> Iterator[Finding]:
    """Every submission that was ever accepted has its task."""
    answers = whole.witnesses.answers
    for task_id, told in sorted(answers.by_task.items()) if answers else ():
        if task_id not in whole.seen and any(a.verdict == "accepted" for a in told):
            yield task_id, "its submission was accepted, and there is no such task"


def effect_belongs_to_a_task(whole: Whole) -> Iterator[Finding]:
    """No service did anything for a task that is not there."""
    ledgers = whole.witnesses.ledgers
    for task_id, services in sorted(ledgers.by_task.items()) if ledgers else ():
        if task_id not in whole.seen:
            for service, ledger in services.items():
                yield from ((task_id, f"{service} has effect {e.key}, there is no such task") for e in ledger.effects)


def run_belongs_to_a_task(whole: Whole) -> Iterator[Finding]:
    """No attempt was run at a task that is not there."""
    runs = whole.witnesses.runs
    for task_id, found in sorted(runs.by_task.items()) if runs else ():
        if task_id not in whole.seen:
            yield from ((task_id, f"{run.workflow_id} has a run, there is no such task") for run in found)


def record_belongs_to_a_task(whole: Whole) -> Iterator[Finding]:
    """A business record that is not closed has its state row: the row comes first."""
    yield from ((task_id, "it has a business record, and no row in the state store") for task_id in whole.strays)


def admission_caps_held(whole: Whole) -> Iterator[Finding]:
    """At each insert the counts of its definition were below the caps, as the events tell.

    What may not have been committed yet is not counted, so nothing is called a violation that the insert did not see.
    """
    caps = whole.witnesses.caps
    in_flight, pending = Counter[str](), Counter[str]()
    for move in sorted(whole.moves):
        if move.submitted and caps and (over := _over(caps, in_flight[move.definition], pending[move.definition])):
            yield move.submitted, f"it was taken in with {over}"
        in_flight[move.definition] += move.in_flight
        pending[move.definition] += move.pending


def _over(caps: Caps, in_flight: int, pending: int) -> str:
    words = []
    if in_flight >= caps.in_flight:
        words.append(f"{in_flight} tasks of its definition in flight, the cap is {caps.in_flight}")
    if pending >= caps.pending:
        words.append(f"{pending} of them pending, the cap is {caps.pending}")
    return "; ".join(words)


def _moves(picture: Picture) -> Iterator[Move]:
    """What each event of a task did to the counts, for certain."""
    definition = picture.task.definition
    for event in picture.events:
        if event.kind is EventKind.SUBMITTED:
            yield Move(event.at, 1, definition, submitted=picture.task.task_id)
    for entered, left in _stays(picture.events, _IN_FLIGHT):
        yield Move(entered, 2, definition, in_flight=1)
        yield Move(left, 0, definition, in_flight=-1)
    for entered, left in _stays(picture.events, (TaskState.PENDING,)):
        yield Move(entered, 2, definition, pending=1)
        yield Move(left, 0, definition, pending=-1)


def _stays(events: Sequence[EventView], counted: Sequence[TaskState]) -> Iterator[tuple[datetime, datetime]]:
    """From when to when the task was in one of these states. The insert of a task is seen by the next at once."""
    entered: datetime | None = None
    for event in events:
        if event.state_to in counted and entered is None:
            entered = event.at if event.kind is EventKind.SUBMITTED else event.at + COMMITTED
        elif event.state_to not in counted and entered is not None:
            if entered < event.at:
                yield entered, event.at
            entered = None
    if entered is not None:
        yield entered, _FOREVER


CHECKS = (
    acknowledged_task_is_there,
    effect_belongs_to_a_task,
    run_belongs_to_a_task,
    record_belongs_to_a_task,
    admission_caps_held,
)
