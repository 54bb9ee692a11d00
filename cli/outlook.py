"""What happens next to a task, in one sentence: who moves it, when, or which command a person has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import assert_never

from cli.output import duration, instant
from domain.states import StepState, TaskState
from store.reads import TaskPage
from store.tables import Step


def outlook(page: TaskPage, *, live_worker: bool, sweep_interval: timedelta) -> str:
    """The sentence. `live_worker`: whether a worker that has the task's definition has shown itself lately."""
    task = page.task
    ask = f"python starter.py compensate {task.task_id} --reason TEXT"
    past_pivot = is_past_pivot(page.steps)
    match task.state:
        case TaskState.PENDING:
            text = _unheld(page, "claimable", live_worker)
        case TaskState.COMPENSATING if task.locked_by is None:
            text = _unheld(page, "its undo is claimable", live_worker)
        case TaskState.PROCESSING | TaskState.COMPENSATING:
            text = _held(page, sweep_interval)
        case TaskState.PROCESSED:
            text = "nothing: it is done" + (", and past its pivot" if past_pivot else f"; `{ask}` would undo it")
        case TaskState.COMPENSATED:
            text = "nothing: it is undone"
        case TaskState.ERROR:
            text = f"waits for a person: `python starter.py resubmit {task.task_id}`"
            text += "" if past_pivot else f", or `{ask}`"
        case TaskState.COMPENSATION_FAILED:
            text = f"waits for a person: once the cause is gone, `{ask}` undoes what is left"
        case _ as never:
            assert_never(never)
    return text


def is_past_pivot(steps: Sequence[Step]) -> bool:
    """Whether the task can only go forward."""
    return any(
        s.pivot
        and (s.state in (StepState.RUNNING, StepState.COMPLETED) or (s.state is StepState.FAILED and s.outcome_unknown))
        for s in steps
    )


def _unheld(page: TaskPage, what: str, live_worker: bool) -> str:
    task, wait = page.task, page.task.not_before - page.now
    when = f"at {instant(task.not_before)} (in {duration(wait)})" if wait > timedelta(0) else "now"
    who = "by the next worker with a free slot" if live_worker else "but no live worker has its definition"
    return f"{what} {when}, {who}"


def _held(page: TaskPage, sweep_interval: timedelta) -> str:
    task = page.task
    if task.complete_by is None:
        raise ValueError(f"task {task.task_id} is held and has no deadline")
    left = task.complete_by - page.now
    recovery = f"the Supervisor recovers it within one sweep ({duration(sweep_interval)})"
    if left > timedelta(0):
        return f"held by {task.locked_by} until {instant(task.complete_by)} (for {duration(left)}), then {recovery}"
    return f"held by {task.locked_by}, overdue for {duration(-left)}: {recovery}"
