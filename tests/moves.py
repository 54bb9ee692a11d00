"""Which moves the state machine allows: the tables in `domain/states.py`, and staying."""

from __future__ import annotations

from domain.states import STEP_TRANSITIONS, TASK_TRANSITIONS, StepState, TaskState


def may_move(source: TaskState, target: TaskState) -> bool:
    """Whether a task may go from `source` to `target`; staying is always allowed."""
    return source == target or (source, target) in TASK_TRANSITIONS


def may_step(source: StepState, target: StepState) -> bool:
    """Whether a step may go from `source` to `target`; staying is always allowed."""
    return source == target or (source, target) in STEP_TRANSITIONS
