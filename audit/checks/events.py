"""What the event log shows of the task: it is whole, legal, and adds up to the row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from audit.task import AuditedTask, EventRow
from domain.ids import attempt_id
from domain.states import EventKind, TaskState, is_legal

_K = EventKind
_ENDS_HOLD_BY_HOLDER = frozenset({_K.PROCESSED, _K.FAILED, _K.RELEASED, _K.COMPENSATED, _K.UNDO_FAILED})
_BY_HOLDER = _ENDS_HOLD_BY_HOLDER | {_K.ADVANCED, _K.GAVE_UP, _K.UNDO_ADVANCED}
_ENDS_HOLD = _ENDS_HOLD_BY_HOLDER | {_K.EXPIRED, _K.UNDO_REQUESTED}
_BY_PEOPLE = frozenset({_K.UNDO_REQUESTED, _K.UNDO_REPAIRED, _K.RESUBMITTED})


def events_are_numbered_without_a_gap(task: AuditedTask) -> Iterator[str]:
    """Every transition has exactly one event, numbered 1..last_event."""
    numbers = [e.number for e in task.events]
    if numbers != list(range(1, task.row.last_event + 1)):
        wanted = set(range(1, task.row.last_event + 1))
        yield f"events {numbers[-3:]} last, last_event is {task.row.last_event}; missing {_few(wanted, numbers)}"


def events_fold_to_the_row(task: AuditedTask) -> Iterator[str]:
    """Every transition has exactly one event: the last one says the row's state and epoch."""
    if task.events:
        last = task.events[-1]
        if last.state_to is not task.row.state:
            yield f"its state is {task.row.state}, its last event says {last.state_to}"
        if last.epoch != task.row.epoch:
            yield f"its epoch is {task.row.epoch}, its last event says {last.epoch}"


def state_changes_are_legal(task: AuditedTask) -> Iterator[str]:
    """Every transition is legal: it begins where the one before it ended, and the state machine has it."""
    before: TaskState | None = None
    for event in task.events:
        step = f"event {event.number} ({event.kind}): {event.state_from} -> {event.state_to}"
        if event.state_from is not before:
            yield f"{step}, but the task was {before}"
        if not _is_legal(event):
            yield f"{step} is not legal"
        before = event.state_to


def epochs_rise_by_one_with_each_claim(task: AuditedTask) -> Iterator[str]:
    """Fenced: every claim raises the epoch by one, and nothing else does."""
    if task.events and task.events[0].epoch != 0:
        yield f"event {task.events[0].number} has epoch {task.events[0].epoch}, not 0"
    for one, other in pairwise(task.events):
        wanted = one.epoch + (other.kind is _K.CLAIMED)
        if other.epoch != wanted:
            yield f"event {other.number} ({other.kind}) has epoch {other.epoch}, not {wanted}"


def only_the_holder_moves_it(task: AuditedTask) -> Iterator[str]:
    """Fenced: a run's events are by the attempt that held the task; the last hold is that of the row."""
    holder: str | None = None
    for event in task.events:
        if event.kind in _BY_HOLDER and event.actor != holder:
            yield f"event {event.number} ({event.kind}) is by {event.actor}, held by {holder or 'nobody'}"
        if event.kind is _K.CLAIMED:
            holder = attempt_id(task.row.definition, task.row.task_id, event.epoch)
        elif event.kind in _ENDS_HOLD or "quarantined" in event.detail:
            holder = None
    if task.events and holder != task.row.locked_by:
        yield f"locked_by is {task.row.locked_by}, by its events {holder or 'nobody'} holds it"


def only_one_run_writes_for_an_attempt(task: AuditedTask) -> Iterator[str]:
    """Fenced: what an attempt wrote, one run of it wrote; one that a reset made does not hold the task."""
    runs: dict[int, set[str]] = {}
    for event in task.events:
        if run := event.detail.get("run_id"):
            runs.setdefault(event.epoch, set()).add(run)
    yield from (f"attempt {epoch} was written by runs {sorted(of)}" for epoch, of in runs.items() if len(of) > 1)


def expiry_ends_the_hold_that_it_names(task: AuditedTask) -> Iterator[str]:
    """Fenced: the Supervisor evicts the holder that it read, and nobody who came after it."""
    for event in task.events:
        holder = attempt_id(task.row.definition, task.row.task_id, event.epoch)
        named = event.detail.get("held_by", holder)
        if event.kind is _K.EXPIRED and named != holder:
            yield f"event {event.number} (expired) names {named}, the attempt then was {holder}"


def outage_counts_no_failure(task: AuditedTask) -> Iterator[str]:
    """An expiry counts no failure if supervision or the store was out while the task was held."""
    claimed = {e.epoch: e.at for e in task.events if e.kind is _K.CLAIMED}
    for event in task.events:
        if event.kind is _K.EXPIRED and event.detail.get("failed") and event.epoch in claimed:
            for until in task.outages:
                if claimed[event.epoch] < until <= event.at:
                    yield f"event {event.number} (expired) counts a failure; there was an outage until {until}"


def requests_say_who_asked_and_why(task: AuditedTask) -> Iterator[str]:
    """Fenced: undo requests, repairs and resubmits say who asked, and why."""
    for event in task.events:
        if event.kind in _BY_PEOPLE:
            if not event.actor.strip():
                yield f"event {event.number} ({event.kind}) names nobody"
            if not str(event.detail.get("reason") or "").strip():
                yield f"event {event.number} ({event.kind}) gives no reason"


def failures_are_counted_once(task: AuditedTask) -> Iterator[str]:
    """Every failure has its event: the task's count is that of its failures since a person last asked."""
    count = 0
    for event in task.events:
        if event.kind in _BY_PEOPLE or event.kind is _K.PROCESSED:
            count = 0
        failed = event.kind in (_K.FAILED, _K.UNDO_FAILED) and "skipped" not in event.detail
        count += failed or (event.kind is _K.EXPIRED and bool(event.detail.get("failed")))
    if task.events and task.row.failure_count != count:
        yield f"its failure count is {task.row.failure_count}, by its events {count}"


def finished_work_is_not_repeated(task: AuditedTask) -> Iterator[str]:
    """Each effect at most once, whatever was retried: a step is completed and undone once, a task Processed once."""
    for word in ("completed", "undone"):
        times = Counter(e.detail[word] for e in task.events if word in e.detail)
        yield from (f"step {step} was {word} {n} times" for step, n in sorted(times.items()) if n > 1)
    if (n := sum(e.kind is _K.PROCESSED for e in task.events)) > 1:
        yield f"it was Processed {n} times"


def _is_legal(event: EventRow) -> bool:
    """A kind that a newer release has added may say anything of a task that stays where it is."""
    if isinstance(event.kind, EventKind):
        return is_legal(event.kind, event.state_from, event.state_to)
    return event.keeps_state


def _few(wanted: set[int], numbers: list[int]) -> list[int]:
    return sorted(wanted - set(numbers))[:5]
