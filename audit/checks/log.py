"""Invariants of the event log: it is whole, legal, and adds up to the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

from audit.task_record import EventView, Picture
from domain.faults import DEFINITION_ERROR, KEY_FORGOTTEN
from domain.ids import attempt_id
from domain.states import EventKind, StepState, TaskState, is_legal

_K = EventKind
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
_ENDS_HOLD = frozenset(
    {_K.PROCESSED, _K.FAILED, _K.RELEASED, _K.EXPIRED, _K.UNDO_REQUESTED, _K.COMPENSATED, _K.UNDO_FAILED}
)
_COSTS_NOTHING = frozenset({_K.SUBMITTED, _K.CONFIRMED, _K.CLAIMED, _K.ADVANCED, _K.NOTED})
_BY_PEOPLE = frozenset({_K.UNDO_REQUESTED, _K.UNDO_REPAIRED, _K.RESUBMITTED})
_UNFINISHED = frozenset({StepState.NOT_STARTED, StepState.RUNNING, StepState.FAILED})


def events_are_numbered_without_a_gap(picture: Picture) -> Iterator[str]:
    """Every transition has exactly one event, numbered 1..last_event."""
    numbers = [e.number for e in picture.events]
    if numbers != list(range(1, picture.task.last_event + 1)):
        wanted = set(range(1, picture.task.last_event + 1))
        yield f"events {numbers[-3:]} last, last_event is {picture.task.last_event}; missing {_few(wanted, numbers)}"


def events_fold_to_the_row(picture: Picture) -> Iterator[str]:
    """The last event says the row's state and epoch."""
    if picture.events:
        last = picture.events[-1]
        if last.state_to is not picture.task.state:
            yield f"its state is {picture.task.state}, its last event says {last.state_to}"
        if last.epoch != picture.task.epoch:
            yield f"its epoch is {picture.task.epoch}, its last event says {last.epoch}"


def state_changes_are_legal(picture: Picture) -> Iterator[str]:
    """Each event begins where the one before it ended, and goes a way that the state machine has."""
    before: TaskState | None = None
    for event in picture.events:
        step = f"event {event.number} ({event.kind}): {event.state_from} -> {event.state_to}"
        if event.state_from is not before:
            yield f"{step}, but the task was {before}"
        if not _is_legal(event):
            yield f"{step} is not legal"
        before = event.state_to


def epochs_rise_by_one_with_each_claim(picture: Picture) -> Iterator[str]:
    """Every claim raises the epoch by one, and nothing else does."""
    if picture.events and picture.events[0].epoch != 0:
        yield f"event {picture.events[0].number} has epoch {picture.events[0].epoch}, not 0"
    for one, other in pairwise(picture.events):
        wanted = one.epoch + (other.kind is EventKind.CLAIMED)
        if other.epoch != wanted:
            yield f"event {other.number} ({other.kind}) has epoch {other.epoch}, not {wanted}"


def only_the_holder_moves_it(picture: Picture) -> Iterator[str]:
    """A run's events are by the attempt that held the task; the last hold is that of the row."""
    holder: str | None = None
    for event in picture.events:
        if event.kind in _BY_HOLDER and event.actor != holder:
            yield f"event {event.number} ({event.kind}) is by {event.actor}, held by {holder or 'nobody'}"
        if event.kind is EventKind.CLAIMED:
            holder = attempt_id(picture.task.definition, picture.task.task_id, event.epoch)
        elif event.kind in _ENDS_HOLD or "quarantined" in event.detail:
            holder = None
    if picture.events and holder != picture.task.locked_by:
        yield f"locked_by is {picture.task.locked_by}, by its events {holder or 'nobody'} holds it"


def only_one_run_writes_for_an_attempt(picture: Picture) -> Iterator[str]:
    """What an attempt wrote, one run of it wrote: one that was made by a reset does not hold the task."""
    runs: dict[int, set[str]] = {}
    for event in picture.events:
        if run := event.detail.get("run_id"):
            runs.setdefault(event.epoch, set()).add(run)
    yield from (f"attempt {epoch} was written by runs {sorted(of)}" for epoch, of in runs.items() if len(of) > 1)


def expiry_ends_the_hold_that_it_names(picture: Picture) -> Iterator[str]:
    """The Supervisor evicts the holder that it read, and nobody who came after it."""
    for event in picture.events:
        holder = attempt_id(picture.task.definition, picture.task.task_id, event.epoch)
        named = event.detail.get("held_by", holder)
        if event.kind is EventKind.EXPIRED and named != holder:
            yield f"event {event.number} (expired) names {named}, the attempt then was {holder}"


def outage_counts_no_failure(picture: Picture) -> Iterator[str]:
    """No expiry counts a failure of a task that was held in an outage of supervision or the store."""
    claimed = {e.epoch: e.at for e in picture.events if e.kind is EventKind.CLAIMED}
    for event in picture.events:
        if event.kind is EventKind.EXPIRED and event.detail.get("failed") and event.epoch in claimed:
            for until in picture.outages:
                if claimed[event.epoch] < until <= event.at:
                    yield f"event {event.number} (expired) counts a failure; there was an outage until {until}"


def requests_say_who_asked_and_why(picture: Picture) -> Iterator[str]:
    """Undo requests, repairs and resubmits name their requester and a reason."""
    for event in picture.events:
        if event.kind in _BY_PEOPLE:
            if not event.actor.strip():
                yield f"event {event.number} ({event.kind}) names nobody"
            if not str(event.detail.get("reason") or "").strip():
                yield f"event {event.number} ({event.kind}) gives no reason"


def events_fold_to_the_steps(picture: Picture) -> Iterator[str]:
    """A step that has begun, is Completed or Undone, has the event that says so, and back."""
    said = {(word, e.detail.get(word)) for e in picture.events for word in ("began", "completed", "undone")}
    for step in picture.steps:
        if step.has_begun and ("began", step.name) not in said:
            yield f"step {step.name} is {step.state}, no event says that it began"
        if step.state is StepState.COMPLETED and ("completed", step.name) not in said:
            yield f"step {step.name} is Completed, no event says so"
        if step.state in _UNFINISHED and ("completed", step.name) in said:
            yield f"step {step.name} is {step.state}, an event says that it was completed"
        by_hand = picture.is_closed_by_hand(step.name)
        if step.state is StepState.UNDONE and not by_hand and ("undone", step.name) not in said:
            yield f"step {step.name} is Undone, no event says so"


def failures_are_counted_once(picture: Picture) -> Iterator[str]:
    """The task's failure count is that of the events that are failures, since a person last asked."""
    count = 0
    for event in picture.events:
        if event.kind in _BY_PEOPLE or event.kind is EventKind.PROCESSED:
            count = 0
        failed = event.kind in (EventKind.FAILED, EventKind.UNDO_FAILED) and "skipped" not in event.detail
        count += failed or (event.kind is EventKind.EXPIRED and bool(event.detail.get("failed")))
    if picture.events and picture.task.failure_count != count:
        yield f"its failure count is {picture.task.failure_count}, by its events {count}"


def step_failures_have_their_events(picture: Picture) -> Iterator[str]:
    """No step has failed more often than events say; what it did since may have set its count back."""
    said = Counter[str]()
    for event in picture.events:
        if event.kind is EventKind.EXPIRED:
            said.update(event.detail.get("failed") or ())
        elif event.kind in (EventKind.FAILED, EventKind.UNDO_FAILED):
            said[str(event.detail.get("step"))] += 1
    for step in picture.steps:
        if step.failure_count > said[step.name]:
            yield f"step {step.name} has failed {step.failure_count} times in a row, by its events {said[step.name]}"


def release_before_any_call_costs_nothing(picture: Picture) -> Iterator[str]:
    """A task that was never held in vain but by those who sent nothing has spent what its completions say."""
    used, at_work = Counter[str](), set[str]()
    for event in picture.events:
        said = event.detail
        if said.get("began") in at_work:  # begun again, what it had reserved before is spent
            return
        if event.kind is _K.RELEASED:
            if said.get("sent") != 0 or said.get("granted"):
                return
            at_work = set()
        elif done := said.get("completed"):
            if said.get("calls") is None:
                return
            used[done] += said["calls"]
        elif event.kind not in _COSTS_NOTHING:
            return
        at_work |= {said["began"]} if "began" in said else set()
    for step in picture.steps:
        if not step.reserved and (spent := step.budget - step.budget_left) > used[step.name]:
            yield f"step {step.name} has lost {spent} calls, {used[step.name]} were sent, and nobody failed"


def finished_work_is_not_repeated(picture: Picture) -> Iterator[str]:
    """A step is completed once and undone once, and a task is Processed once, whatever was retried."""
    for word in ("completed", "undone"):
        times = Counter(e.detail[word] for e in picture.events if word in e.detail)
        yield from (f"step {step} was {word} {n} times" for step, n in sorted(times.items()) if n > 1)
    if (n := sum(e.kind is EventKind.PROCESSED for e in picture.events)) > 1:
        yield f"it was Processed {n} times"


def first_answer_decides_its_step(picture: Picture) -> Iterator[str]:
    """A step comes to what the first answer to its key says, where that came before its end.

    An answer that nobody waited for may be used by none: its step, or its task, had ended otherwise by then.
    """
    for step in picture.steps:
        answer = picture.answer_to(step)
        if answer is None:
            continue
        if step.completed_at is not None and answer.received_at < step.completed_at:
            if answer.kind != "completed":
                yield f"step {step.name} was completed, the first answer to {answer.key} had refused it"
            elif answer.result != step.result:
                yield f"step {step.name} was not completed with the first answer to {answer.key}"
        refused_at = _refused_at(picture, step.name) if step.state is StepState.FAILED else None
        if refused_at is not None and answer.received_at < refused_at and answer.kind == "completed":
            yield f"step {step.name} has failed, the first answer to {answer.key} had said that it was done"


def steps_begin_in_their_order(picture: Picture) -> Iterator[str]:
    """A step begins when all that it comes after are completed, and not before."""
    done: set[str] = set()
    for event in picture.events:
        if "completed" in event.detail:
            done.add(event.detail["completed"])
        began = event.detail.get("began") if event.kind is EventKind.ADVANCED else None
        before = picture.definition.after(began) if began and picture.definition else ()
        if missing := sorted(set(before) - done):
            yield f"event {event.number}: step {began} began before {', '.join(missing)} was completed"


def no_step_begins_at_an_open_breaker(picture: Picture) -> Iterator[str]:
    """While a service's breaker is open no step that needs it begins, nor an undo, but of the task that probes."""
    for event in picture.events:
        step = event.detail.get("began")
        undo = event.kind is EventKind.UNDO_ADVANCED
        service = picture.definition.service(step, undo=undo) if step and picture.definition else ""
        if picture.breakers.kept_out(service, picture.task.task_id, event.at):
            yield f"event {event.number}: {'undo of ' * undo}step {step} began, the breaker of {service} was open"


def _refused_at(picture: Picture, step: str) -> datetime | None:
    """When the service's refusal of a step was last recorded; None if the last fault of the step was our own word."""
    faults = [e for e in picture.events if e.kind is EventKind.FAILED and e.detail.get("step") == step]
    return faults[-1].at if faults and faults[-1].detail.get("code") not in (KEY_FORGOTTEN, DEFINITION_ERROR) else None


def _is_legal(event: EventView) -> bool:
    """A kind that a newer release has added may say anything of a task that stays where it is."""
    if isinstance(event.kind, EventKind):
        return is_legal(event.kind, event.state_from, event.state_to)
    return event.stays


def _few(wanted: set[int], numbers: list[int]) -> list[int]:
    return sorted(wanted - set(numbers))[:5]


CHECKS = (
    events_are_numbered_without_a_gap,
    events_fold_to_the_row,
    state_changes_are_legal,
    epochs_rise_by_one_with_each_claim,
    only_the_holder_moves_it,
    only_one_run_writes_for_an_attempt,
    expiry_ends_the_hold_that_it_names,
    outage_counts_no_failure,
    requests_say_who_asked_and_why,
    events_fold_to_the_steps,
    failures_are_counted_once,
    step_failures_have_their_events,
    release_before_any_call_costs_nothing,
    finished_work_is_not_repeated,
    first_answer_decides_its_step,
    steps_begin_in_their_order,
    no_step_begins_at_an_open_breaker,
)
