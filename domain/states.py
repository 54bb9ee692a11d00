"""The state machine: every state, and every transition that is legal.

The database has the same pairs, in `store/triggers/event.sql`, and refuses every other change. A test walks every pair
against it, so that neither can change alone.

    submitted ─► Pending ──claimed──► Processing ──processed──► Processed
                  ▲  ▲ │                │ │ │                       │
                  │  └─┼─── released, ──┘ │ └── failed ──► Error    │
                  │    │    expired       │                │ │      │
                  └────┼──────────────────┼── resubmitted ─┘ │      │
                       └── undo requested ┴──────────────────┴──────┘
                                          ▼
            CompensationFailed ◄── Compensating ──► Compensated
                  └── undo requested ──────┘
"""

from __future__ import annotations

from enum import StrEnum


class TaskState(StrEnum):
    """State of a task, as stored. The pattern's words, with compensation kept apart."""

    PENDING = "Pending"
    PROCESSING = "Processing"
    PROCESSED = "Processed"
    ERROR = "Error"
    COMPENSATING = "Compensating"
    COMPENSATED = "Compensated"
    COMPENSATION_FAILED = "CompensationFailed"

    @property
    def is_settled(self) -> bool:
        """Nothing moves this task any more unless a person asks for it."""
        return self in SETTLED


class StepState(StrEnum):
    """State of one step. A step that timed out and one whose Agent died look alike: Running, overdue."""

    NOT_STARTED = "NotStarted"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNDOING = "Undoing"
    UNDONE = "Undone"
    UNDO_FAILED = "UndoFailed"


class UndoState(StrEnum):
    """State of one entry of the compensation log."""

    LOGGED = "Logged"
    UNDOING = "Undoing"
    UNDONE = "Undone"
    FAILED = "Failed"
    SKIPPED = "Skipped"
    CLOSED_BY_HAND = "ClosedByHand"

    @property
    def is_open(self) -> bool:
        """There is something left to do about this entry."""
        return self in OPEN_ENTRIES


class EventKind(StrEnum):
    """What a transition was. Each transition appends exactly one event of one kind."""

    SUBMITTED = "submitted"
    CONFIRMED = "confirmed"
    CLAIMED = "claimed"
    ADVANCED = "advanced"
    PROCESSED = "processed"
    FAILED = "failed"
    GAVE_UP = "gave_up"
    RELEASED = "released"
    EXPIRED = "expired"
    UNDO_REQUESTED = "undo_requested"
    UNDO_ADVANCED = "undo_advanced"
    COMPENSATED = "compensated"
    UNDO_FAILED = "undo_failed"
    UNDO_REPAIRED = "undo_repaired"
    RESUBMITTED = "resubmitted"
    LATE_ANSWER = "late_answer"
    NOTED = "noted"


class BreakerState(StrEnum):
    """State of a service's circuit breaker, by its own judgement or by a person's word."""

    CLOSED = "closed"
    OPEN = "open"
    FORCED_CLOSED = "forced closed"
    FORCED_OPEN = "forced open"

    @property
    def is_open(self) -> bool:
        """Whether it keeps tasks from the service."""
        return self in (BreakerState.OPEN, BreakerState.FORCED_OPEN)


class ServiceEventKind(StrEnum):
    """What moved a breaker: failures in a row, its probes, the probe that succeeded, or a person."""

    OPENED = "opened"
    PROBE = "probe"
    PROBE_FAILED = "probe_failed"
    CLOSED = "closed"
    BY_HAND = "by_hand"


CLAIMABLE = (TaskState.PENDING, TaskState.COMPENSATING)
"""States in which a task that nobody holds may be claimed: to go forward, or to be undone."""

SETTLED = frozenset({TaskState.PROCESSED, TaskState.ERROR, TaskState.COMPENSATED, TaskState.COMPENSATION_FAILED})
"""States in which a task rests: finished, or waiting for a person."""

OPEN_ENTRIES = frozenset({UndoState.LOGGED, UndoState.UNDOING, UndoState.FAILED})
"""Entries of the compensation log that are still to be worked; a person may have skipped others, or closed them."""

_T, _E = TaskState, EventKind
TASK_TRANSITIONS: dict[tuple[TaskState, TaskState], frozenset[EventKind]] = {
    (_T.PENDING, _T.PROCESSING): frozenset({_E.CLAIMED}),
    (_T.PENDING, _T.COMPENSATING): frozenset({_E.UNDO_REQUESTED}),
    (_T.PROCESSING, _T.PENDING): frozenset({_E.RELEASED, _E.EXPIRED}),
    (_T.PROCESSING, _T.PROCESSED): frozenset({_E.PROCESSED}),
    (_T.PROCESSING, _T.ERROR): frozenset({_E.FAILED, _E.EXPIRED}),
    (_T.PROCESSING, _T.COMPENSATING): frozenset({_E.FAILED, _E.EXPIRED, _E.UNDO_REQUESTED}),
    (_T.PROCESSED, _T.COMPENSATING): frozenset({_E.UNDO_REQUESTED}),
    (_T.ERROR, _T.PENDING): frozenset({_E.RESUBMITTED}),
    (_T.ERROR, _T.COMPENSATING): frozenset({_E.UNDO_REQUESTED}),
    (_T.COMPENSATING, _T.COMPENSATED): frozenset({_E.COMPENSATED}),
    (_T.COMPENSATING, _T.COMPENSATION_FAILED): frozenset({_E.UNDO_FAILED, _E.EXPIRED}),
    (_T.COMPENSATION_FAILED, _T.COMPENSATING): frozenset({_E.UNDO_REQUESTED, _E.UNDO_REPAIRED}),
}
"""Which events may take a task from one state to another."""

STAYS: dict[EventKind, frozenset[TaskState]] = {
    _E.CONFIRMED: frozenset({_T.PENDING}),
    _E.CLAIMED: frozenset({_T.COMPENSATING}),
    _E.ADVANCED: frozenset({_T.PROCESSING}),
    _E.GAVE_UP: frozenset({_T.PROCESSING, _T.COMPENSATING}),
    _E.RELEASED: frozenset({_T.COMPENSATING}),
    _E.EXPIRED: frozenset({_T.COMPENSATING}),
    _E.UNDO_ADVANCED: frozenset({_T.COMPENSATING}),
    _E.UNDO_REPAIRED: frozenset({_T.COMPENSATING}),
    _E.LATE_ANSWER: frozenset(_T),
    _E.NOTED: frozenset(_T),
}
"""In which states an event of each kind may leave the task where it is."""


def is_legal(kind: EventKind, before: TaskState | None, after: TaskState) -> bool:
    """Whether an event of this kind may take a task from one state to another, or leave it there; `None`: a new one."""
    if before is None:
        return (kind, after) == (_E.SUBMITTED, _T.PENDING)
    if before is after:
        return after in STAYS.get(kind, frozenset())
    return kind in TASK_TRANSITIONS.get((before, after), frozenset())


_S = StepState
STEP_TRANSITIONS: frozenset[tuple[StepState, StepState]] = frozenset(
    {
        (_S.NOT_STARTED, _S.RUNNING),
        (_S.RUNNING, _S.COMPLETED),
        (_S.RUNNING, _S.FAILED),
        (_S.FAILED, _S.RUNNING),
        (_S.RUNNING, _S.UNDOING),
        (_S.COMPLETED, _S.UNDOING),
        (_S.FAILED, _S.UNDOING),
        (_S.UNDOING, _S.UNDONE),
        (_S.UNDOING, _S.UNDO_FAILED),
        (_S.UNDO_FAILED, _S.UNDOING),
        (_S.RUNNING, _S.UNDONE),  # the last four: a person closed the entry by hand
        (_S.COMPLETED, _S.UNDONE),
        (_S.FAILED, _S.UNDONE),
        (_S.UNDO_FAILED, _S.UNDONE),
    }
)
"""Legal changes of a step's state."""
