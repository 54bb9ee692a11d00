"""What a step's row says of its calls: whether one may have had its effect, or may still arrive."""

from __future__ import annotations

from collections.abc import Sequence

from domain.faults import Conflict
from domain.states import StepState
from operators.times import instant
from store.reads import TaskPage
from store.rows import Step


def is_past_pivot(steps: Sequence[Step]) -> bool:
    """Whether the task can only go forward."""
    return any(
        s.pivot
        and (s.state in (StepState.RUNNING, StepState.COMPLETED) or (s.state is StepState.FAILED and s.outcome_unknown))
        for s in steps
    )


def has_unknown_outcome(step: Step) -> bool:
    """Whether a call of a step that is not done may have had its effect, and nobody knows."""
    if step.state is StepState.RUNNING:
        return step.outcome_unknown or step.reserved > 0
    return step.state is StepState.FAILED and step.outcome_unknown


def check_no_call_on_its_way(page: TaskPage, step: Step) -> None:
    """What a person has seen of a step holds only once no call of it can arrive any more.

    Raises:
        Conflict: One can; says until when.
    """
    if step.completed_at is not None or step.complete_by is None:
        return
    until = step.complete_by + page.late_call_margin
    if until > page.now:
        raise Conflict(
            f"a call of step {step.name} of task {page.task.task_id} may be on its way until {instant(until)}:"
            " look at the service again then"
        )
