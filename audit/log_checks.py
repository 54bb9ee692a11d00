"""Invariants of the event log: it is whole, legal, and adds up to the rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from audit.picture import Picture
from domain.ids import attempt_id
from domain.states import TASK_TRANSITIONS, EventKind, StepState, TaskState

_K, _T = EventKind, TaskState
_STAYS: dict[EventKind, frozenset[TaskState]] = {
    _K.CLAIMED: frozenset({_T.COMPENSATING}),
    _K.ADVANCED: frozenset({_T.PROCESSING}),
    _K.GAVE_UP: frozenset({_T.PROCESSING, _T.COMPENSATING}),
    _K.RELEASED: frozenset({_T.COMPENSATING}),
    _K.EXPIRED: frozenset({_T.COMPENSATING}),
    _K.UNDO_ADVANCED: frozenset({_T.COMPENSATING}),
    _K.NOTED: frozenset(_T),
}
"""In which states an event may leave the task where it is."""

_BY_HOLDER = frozenset(
    {
        _K.ADVANCED,
        _K.PROCESSED,
        _K.FAILED,
        _K.GAVE_UP,
        _K.RELEASED,
        _K.UNDO_ADVANCED,
        _K.COMPENSATED,
        _K.UNDO_FAILED,
    }
)
_KEEPS_HOLD = frozenset({_K.CLAIMED, _K.ADVANCED, _K.UNDO_ADVANCED, _K.GAVE_UP, _K.NOTED})


def events_are_numbered_without_a_gap(picture: Picture) -> Iterator[str]:
    """Every transition has exactly one event, numbered 1..last_event (design 7, failures 18)."""
    numbers = [e.number for e in picture.events]
    if numbers != list(range(1, picture.task.last_event + 1)):
        wanted = set(range(1, picture.task.last_event + 1))
        yield f"events {numbers[-3:]} last, last_event is {picture.task.last_event}; missing {_few(wanted, numbers)}"


def events_fold_to_the_row(picture: Picture) -> Iterator[str]:
    """The last event says the row's state and epoch (design 7, failures 18)."""
    if picture.events:
        last = picture.events[-1]
        if last.state_to is not picture.task.state:
            yield f"its state is {picture.task.state}, its last event says {last.state_to}"
        if last.epoch != picture.task.epoch:
            yield f"its epoch is {picture.task.epoch}, its last event says {last.epoch}"


def state_changes_are_legal(picture: Picture) -> Iterator[str]:
    """Each event begins where the one before it ended, and goes a way that the state machine has (failures 6)."""
    before: TaskState | None = None
    for event in picture.events:
        step = f"event {event.number} ({event.kind}): {event.state_from} -> {event.state_to}"
        if event.state_from is not before:
            yield f"{step}, but the task was {before}"
        if not _is_legal(event.kind, event.state_from, event.state_to):
            yield f"{step} is not legal"
        before = event.state_to


def epochs_rise_by_one_with_each_claim(picture: Picture) -> Iterator[str]:
    """Every claim raises the epoch by one, and nothing else does (design 4, failures 6)."""
    if picture.events and picture.events[0].epoch != 0:
        yield f"event {picture.events[0].number} has epoch {picture.events[0].epoch}, not 0"
    for one, other in pairwise(picture.events):
        wanted = one.epoch + (other.kind is EventKind.CLAIMED)
        if other.epoch != wanted:
            yield f"event {other.number} ({other.kind}) has epoch {other.epoch}, not {wanted}"


def only_the_holder_moves_it(picture: Picture) -> Iterator[str]:
    """A run's events are by the attempt that held the task; the last hold is that of the row (design 4, failures 7)."""
    holder: str | None = None
    for event in picture.events:
        if event.kind in _BY_HOLDER and event.actor != holder:
            yield f"event {event.number} ({event.kind}) is by {event.actor}, held by {holder or 'nobody'}"
        if event.kind is EventKind.CLAIMED:
            holder = attempt_id(picture.task.definition, picture.task.task_id, event.epoch)
        elif event.kind not in _KEEPS_HOLD:
            holder = None
    if picture.events and holder != picture.task.locked_by:
        yield f"locked_by is {picture.task.locked_by}, by its events {holder or 'nobody'} holds it"


def requests_say_who_asked(picture: Picture) -> Iterator[str]:
    """Undo requests and resubmits name their requester (design 4, failures 15)."""
    for event in picture.events:
        if event.kind in (EventKind.UNDO_REQUESTED, EventKind.RESUBMITTED) and not event.actor.strip():
            yield f"event {event.number} ({event.kind}) names nobody"


def events_fold_to_the_steps(picture: Picture) -> Iterator[str]:
    """A step that has begun, is Completed or Undone, has the event that says so (failures 18)."""
    said = {(word, e.detail.get(word)) for e in picture.events for word in ("began", "completed", "undone")}
    for step in picture.steps:
        if step.has_begun and ("began", step.name) not in said:
            yield f"step {step.name} is {step.state}, no event says that it began"
        if step.state is StepState.COMPLETED and ("completed", step.name) not in said:
            yield f"step {step.name} is Completed, no event says so"
        if step.state is StepState.UNDONE and ("undone", step.name) not in said:
            yield f"step {step.name} is Undone, no event says so"


def _is_legal(kind: EventKind, source: TaskState | None, target: TaskState) -> bool:
    if source is None:
        return (kind, target) == (EventKind.SUBMITTED, TaskState.PENDING)
    if source is target:
        return source in _STAYS.get(kind, frozenset())
    return kind in TASK_TRANSITIONS.get((source, target), frozenset())


def _few(wanted: set[int], numbers: list[int]) -> list[int]:
    return sorted(wanted - set(numbers))[:5]


CHECKS = (
    events_are_numbered_without_a_gap,
    events_fold_to_the_row,
    state_changes_are_legal,
    epochs_rise_by_one_with_each_claim,
    only_the_holder_moves_it,
    requests_say_who_asked,
    events_fold_to_the_steps,
)
