"""Invariants of the rows: outcome, hold, budgets, undo log, progress, business record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from audit.task_record import Picture
from domain.states import StepState, TaskState, UndoState

_S, _T, _U = StepState, TaskState, UndoState
_ALERTS = {_T.ERROR: "task_in_error", _T.COMPENSATION_FAILED: "compensation_failed"}
_FORWARD = frozenset({_S.NOT_STARTED, _S.RUNNING, _S.COMPLETED, _S.FAILED})
_UNDO_WORDS = {
    _U.UNDOING: _S.UNDOING,
    _U.UNDONE: _S.UNDONE,
    _U.FAILED: _S.UNDO_FAILED,
}


def processed_is_complete(picture: Picture) -> Iterator[str]:
    """Processed: every step Completed, nothing undone."""
    if picture.task.state is not _T.PROCESSED:
        return
    yield from (f"it is Processed, step {s.name} is {s.state}" for s in picture.steps if s.state is not _S.COMPLETED)
    yield from (f"it is Processed, undo of {e.step} is {e.state}" for e in picture.undo_log if e.state is not _U.LOGGED)


def compensated_is_undone(picture: Picture) -> Iterator[str]:
    """Compensated: every entry of the undo log is Undone, or closed by hand with evidence."""
    if picture.task.state is _T.COMPENSATED:
        left = [e for e in picture.undo_log if e.state not in (_U.UNDONE, _U.CLOSED_BY_HAND)]
        yield from (f"it is Compensated, undo of {e.step} is {e.state}" for e in left)


def what_needs_a_person_has_an_alert(picture: Picture) -> Iterator[str]:
    """Error and CompensationFailed: an alert for each time that the task came there."""
    for state, kind in _ALERTS.items():
        came = sum(e.state_to is state and e.state_from is not state for e in picture.events)
        times = max(came, picture.task.state is state)
        raised = sum(a.kind == kind for a in picture.alerts)
        if raised < times:
            yield f"it came to {state} {times} times, alerts {kind}: {raised}"


def what_needs_a_person_says_why(picture: Picture) -> Iterator[str]:
    """Error and CompensationFailed carry a cause that a person can read."""
    if picture.task.state in _ALERTS and not str((picture.task.error or {}).get("message") or "").strip():
        yield f"it is {picture.task.state}, and its error says {picture.task.error}"


def held_exactly_while_it_has_a_deadline(picture: Picture) -> Iterator[str]:
    """A holder has a deadline, is the newest attempt, and is there only while the task is at work."""
    task = picture.task
    if (task.locked_by is None) != (task.complete_by is None):
        yield f"locked_by is {task.locked_by}, complete_by is {task.complete_by}"
    if task.locked_by not in (None, task.attempt):
        yield f"locked_by is {task.locked_by}, its newest attempt is {task.attempt}"
    if task.locked_by is None and (task.run_id or task.state is _T.PROCESSING):
        yield f"it is {task.state} with run {task.run_id}, held by nobody"
    if task.locked_by and task.state not in (_T.PROCESSING, _T.COMPENSATING):
        yield f"it is {task.state}, held by {task.locked_by}"


def nothing_is_stuck(picture: Picture) -> Iterator[str]:
    """Held in time or found soon; claimable, and claimed soon if a live worker is there.

    Where a breaker is open, tasks wait for it. Nobody waits for a submission that was not finished.
    """
    task, terms = picture.task, picture.terms
    if task.complete_by is not None:
        if (late := picture.now - task.complete_by) > terms.detection_delay:
            yield f"held by {task.locked_by}, overdue by {late.total_seconds():.0f} s, and not recovered"
        return
    late = picture.now - task.not_before
    has_worker = picture.definition is not None and picture.definition.has_live_worker
    waits = not has_worker or not task.confirmed or picture.waits_for_a_breaker
    if task.state in (_T.PENDING, _T.COMPENSATING) and not waits and late > terms.claim_delay:
        yield f"{task.state}, due for {late.total_seconds():.0f} s, and not claimed by the workers there are"


def budgets_are_not_overdrawn(picture: Picture) -> Iterator[str]:
    """What is left of a budget, and reserved of it, is within 0 and what was granted."""
    for s in picture.steps:
        undoing = s.state is _S.UNDOING
        for word, granted, left, open_ in (
            ("", s.budget, s.budget_left, 0 if undoing else s.reserved),
            ("undo ", s.undo_budget, s.undo_budget_left, s.reserved if undoing else 0),
        ):
            if left < 0 or open_ < 0 or left + open_ > granted:
                yield f"step {s.name}: {left} {word}calls left and {open_} reserved of {granted}"


def undo_runs_in_reverse(picture: Picture) -> Iterator[str]:
    """What began last is undone first, and an entry only after all that began later.

    What a person repaired, in whatever order, is not looked at.
    """
    repaired = picture.repaired
    entries = sorted(picture.undo_log, key=lambda e: e.seq, reverse=True)
    for later, earlier in pairwise(e for e in entries if e.step not in repaired):
        if earlier.state is not _U.LOGGED and later.state is not _U.UNDONE:
            yield f"undo of {earlier.step} is {earlier.state}, that of {later.step}, which began later, {later.state}"
        elif earlier.undone_at and later.undone_at and earlier.undone_at < later.undone_at:
            yield f"{earlier.step} (seq {earlier.seq}) was undone before {later.step}, which began later"


def undo_log_fits_the_steps(picture: Picture) -> Iterator[str]:
    """Every begun step with an undo is in the log, and both say how far its undo got."""
    entries = {e.step: e for e in picture.undo_log}
    repaired = picture.repaired
    for step in picture.steps:
        entry = entries.get(step.name)
        if entry is None:
            if step.has_begun and picture.undoable(step.name):
                yield f"step {step.name} is {step.state}, and not in the undo log"
        elif not step.has_begun:
            yield f"step {step.name} has not begun, and is in the undo log"
        elif step.name not in repaired and _UNDO_WORDS.get(entry.state) is not _as_undone(step.state):
            yield f"step {step.name} is {step.state}, its undo is {entry.state}"
    yield from (f"seq {e.seq} of {e.step} was never given" for e in picture.undo_log if e.seq > picture.task.last_seq)


def steps_fit_the_state(picture: Picture) -> Iterator[str]:
    """A step is at work only in a task that is; undo only in one that is undone, or whose undo failed.

    A task that expired into Error keeps the steps that were Running: their outcome is unknown.
    """
    state = picture.task.state
    for step in picture.steps:
        forward_only = state in (_T.PENDING, _T.PROCESSING, _T.PROCESSED, _T.ERROR)
        rests = state in (_T.PROCESSED, _T.COMPENSATED)
        if forward_only and step.state not in _FORWARD:
            yield f"it is {state}, step {step.name} is {step.state}"
        if rests and step.state in (_S.RUNNING, _S.UNDOING) and picture.undoable(step.name):
            yield f"it is {state}, step {step.name} is {step.state}"
        if step.epoch > picture.task.epoch:
            yield f"step {step.name} has epoch {step.epoch}, its task {picture.task.epoch}"


def begun_task_has_its_business_record(picture: Picture) -> Iterator[str]:
    """A task that has begun a step has a business record of the same digest."""
    if any(s.has_begun for s in picture.steps) and picture.digest != picture.task.record_digest:
        found = f"has the digest {picture.digest[:12]}" if picture.digest is not None else "is not there"
        yield f"its business record {found}; submitted was {picture.task.record_digest[:12]}"


def _as_undone(state: StepState) -> StepState | None:
    """What a step's state says of its undo; None: nothing was done about it."""
    return None if state in _FORWARD else state


CHECKS = (
    processed_is_complete,
    compensated_is_undone,
    what_needs_a_person_has_an_alert,
    what_needs_a_person_says_why,
    held_exactly_while_it_has_a_deadline,
    nothing_is_stuck,
    budgets_are_not_overdrawn,
    undo_runs_in_reverse,
    undo_log_fits_the_steps,
    steps_fit_the_state,
    begun_task_has_its_business_record,
)
