"""What the rows show: outcome, hold, budgets, undo log, progress, business record."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from audit.task import AuditedTask
from domain.states import StepState, TaskState, UndoState

_S, _T, _U = StepState, TaskState, UndoState
_ALERTS = {_T.ERROR: "task_in_error", _T.COMPENSATION_FAILED: "compensation_failed"}
_FORWARD = frozenset({_S.NOT_STARTED, _S.RUNNING, _S.COMPLETED, _S.FAILED})
_STEP_STATES = {_U.UNDOING: _S.UNDOING, _U.UNDONE: _S.UNDONE, _U.FAILED: _S.UNDO_FAILED}
"""What a step's state is while its entry in the undo log has this one."""


def processed_is_complete(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Processed means that every step is Completed, and nothing undone."""
    if task.row.state is _T.PROCESSED:
        yield from (f"it is Processed, step {s.name} is {s.state}" for s in task.steps if s.state is not _S.COMPLETED)
        undone = [e for e in task.undo_log if e.state is not _U.LOGGED]
        yield from (f"it is Processed, undo of {e.step} is {e.state}" for e in undone)


def compensated_is_undone(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Compensated means that every entry of the undo log is Undone, or closed by hand."""
    if task.row.state is _T.COMPENSATED:
        left = [e for e in task.undo_log if e.state not in (_U.UNDONE, _U.CLOSED_BY_HAND)]
        yield from (f"it is Compensated, undo of {e.step} is {e.state}" for e in left)


def what_needs_a_person_has_an_alert(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Error and CompensationFailed are visible: one alert each time that the task came there."""
    for state, kind in _ALERTS.items():
        came = sum(e.state_to is state and e.state_from is not state for e in task.events)
        times = max(came, task.row.state is state)
        raised = sum(a.kind == kind for a in task.alerts)
        if raised < times:
            yield f"it came to {state} {times} times, alerts {kind}: {raised}"


def what_needs_a_person_says_why(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Error and CompensationFailed are visible, with a cause that a person can read."""
    if task.row.state in _ALERTS and not str((task.row.error or {}).get("message") or "").strip():
        yield f"it is {task.row.state}, and its error says {task.row.error}"


def held_exactly_while_it_has_a_deadline(task: AuditedTask) -> Iterator[str]:
    """Fenced: a holder has a deadline, is the newest attempt, and is there only while the task is at work."""
    row = task.row
    if (row.locked_by is None) != (row.complete_by is None):
        yield f"locked_by is {row.locked_by}, complete_by is {row.complete_by}"
    if row.locked_by not in (None, row.attempt):
        yield f"locked_by is {row.locked_by}, its newest attempt is {row.attempt}"
    if row.locked_by is None and (row.run_id or row.state is _T.PROCESSING):
        yield f"it is {row.state} with run {row.run_id}, held by nobody"
    if row.locked_by and row.state not in (_T.PROCESSING, _T.COMPENSATING):
        yield f"it is {row.state}, held by {row.locked_by}"


def nothing_is_stuck(task: AuditedTask) -> Iterator[str]:
    """Nothing stuck: held with time left, or expired for less than the detection delay; or claimable, and claimed soon
    if a live worker is there.

    Where a breaker is open, tasks wait for it. Nobody waits for a submission that was not finished.
    """
    row = task.row
    if row.complete_by is not None:
        if (late := task.now - row.complete_by) > task.tolerances.detection_delay:
            yield f"held by {row.locked_by}, overdue by {late.total_seconds():.0f} s, and not recovered"
        return
    late = task.now - row.not_before
    has_worker = task.definition is not None and task.definition.has_live_worker
    waits = not has_worker or not row.confirmed or task.waits_for_a_breaker
    if row.state in (_T.PENDING, _T.COMPENSATING) and not waits and late > task.tolerances.claim_delay:
        yield f"{row.state}, due for {late.total_seconds():.0f} s, and not claimed by the workers there are"


def budgets_are_not_overdrawn(task: AuditedTask) -> Iterator[str]:
    """Calls never exceed what was granted: what is left of a budget, and reserved of it, is within it."""
    for s in task.steps:
        undoing = s.state is _S.UNDOING
        for word, granted, left, open_ in (
            ("", s.budget, s.budget_left, 0 if undoing else s.reserved),
            ("undo ", s.undo_budget, s.undo_budget_left, s.reserved if undoing else 0),
        ):
            if left < 0 or open_ < 0 or left + open_ > granted:
                yield f"step {s.name}: {left} {word}calls left and {open_} reserved of {granted}"


def undo_runs_in_reverse(task: AuditedTask) -> Iterator[str]:
    """Undo runs in the reverse order of beginning: an entry is undone only after all that began later.

    What a person repaired, in whatever order, is not looked at.
    """
    repaired = task.repaired_steps
    entries = sorted(task.undo_log, key=lambda e: e.seq, reverse=True)
    for later, earlier in pairwise(e for e in entries if e.step not in repaired):
        if earlier.state is not _U.LOGGED and later.state is not _U.UNDONE:
            yield f"undo of {earlier.step} is {earlier.state}, that of {later.step}, which began later, {later.state}"
        elif earlier.undone_at and later.undone_at and earlier.undone_at < later.undone_at:
            yield f"{earlier.step} (seq {earlier.seq}) was undone before {later.step}, which began later"


def undo_log_fits_the_steps(task: AuditedTask) -> Iterator[str]:
    """The undo log says how far it got: every begun step with an undo is in it, and its row says the same."""
    entries = {e.step: e for e in task.undo_log}
    repaired = task.repaired_steps
    for step in task.steps:
        entry = entries.get(step.name)
        if entry is None:
            if step.has_begun and task.has_undo(step.name):
                yield f"step {step.name} is {step.state}, and not in the undo log"
        elif not step.has_begun:
            yield f"step {step.name} has not begun, and is in the undo log"
        elif step.name not in repaired and _STEP_STATES.get(entry.state) is not _undo_state(step.state):
            yield f"step {step.name} is {step.state}, its undo is {entry.state}"
    yield from (f"seq {e.seq} of {e.step} was never given" for e in task.undo_log if e.seq > task.row.last_seq)


def steps_fit_the_state(task: AuditedTask) -> Iterator[str]:
    """All or nothing: a step is at work only in a task that is, undo only in one that is undone, or whose undo failed.

    A task that expired into Error keeps the steps that were Running: their outcome is unknown.
    """
    state = task.row.state
    for step in task.steps:
        forward_only = state in (_T.PENDING, _T.PROCESSING, _T.PROCESSED, _T.ERROR)
        rests = state in (_T.PROCESSED, _T.COMPENSATED)
        if forward_only and step.state not in _FORWARD:
            yield f"it is {state}, step {step.name} is {step.state}"
        if rests and step.state in (_S.RUNNING, _S.UNDOING) and task.has_undo(step.name):
            yield f"it is {state}, step {step.name} is {step.state}"
        if step.epoch > task.row.epoch:
            yield f"step {step.name} has epoch {step.epoch}, its task {task.row.epoch}"


def begun_task_has_its_business_record(task: AuditedTask) -> Iterator[str]:
    """Nothing lost: a task that has begun a step has a business record of the same digest."""
    if any(s.has_begun for s in task.steps) and task.digest != task.row.record_digest:
        found = f"has the digest {task.digest[:12]}" if task.digest is not None else "is not there"
        yield f"its business record {found}; submitted was {task.row.record_digest[:12]}"


def _undo_state(state: StepState) -> StepState | None:
    """What a step's state says of its undo; None: nothing was done about it."""
    return None if state in _FORWARD else state
