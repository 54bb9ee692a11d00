"""Waiting for tasks: until they are claimed, or until they rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from rich.text import Text

from cli.app import ExitCode
from cli.output import Format, print_note
from cli.screen import coloured, note_console, print_rich, table
from domain.states import SETTLED, TaskState
from store.reads import Reads
from store.rows import Task

UNDO_RESTS = frozenset({TaskState.COMPENSATED, TaskState.COMPENSATION_FAILED})
"""States in which a task rests whose undo was asked for."""

_LOOK_S = 0.1


@dataclass(frozen=True)
class Ending:
    """How it ended: the tasks as they were last seen, and the exit code that makes."""

    code: ExitCode
    tasks: Sequence[Task]


async def claimed(reads: Reads, task_ids: Sequence[str], within: timedelta) -> Sequence[Task]:
    """Wait until each of these tasks has been claimed once. Returns those that were not in time."""
    give_up_at = monotonic() + within.total_seconds()
    while True:
        waiting = [t for t in await reads.tasks(ids=task_ids, limit=len(task_ids)) if is_unclaimed(t)]
        if not waiting or monotonic() > give_up_at:
            return waiting
        await asyncio.sleep(_LOOK_S)


def is_unclaimed(task: Task) -> bool:
    """Whether nobody has ever taken the task up."""
    return task.epoch == 0 and not task.state.is_settled


async def follow(
    reads: Reads,
    task_ids: Sequence[str],
    timeout_s: float,
    output: Format,
    *,
    good: TaskState = TaskState.PROCESSED,
    rest: frozenset[TaskState] = SETTLED,
) -> Ending:
    """Wait until the tasks rest, and say how they ended: as text here, as JSON by the caller.

    Its code is FAILED if one ended other than `good`, TIMED_OUT if one did not end in time.
    """
    timed_out = None
    try:
        with note_console().status(f"following {len(task_ids)} tasks, at most {timeout_s:g} s"):
            tasks = await reads.wait_state(task_ids, rest, timedelta(seconds=timeout_s))
    except TimeoutError as error:
        timed_out = error
        tasks = await reads.tasks(ids=task_ids, limit=len(task_ids))
    if output is Format.TEXT:
        print_rich(table(["task", "state", "attempts", "error"], map(_row, as_asked(tasks, task_ids))))
    if timed_out is not None:
        print_note(f"error: timed out after {timeout_s:g} s: {timed_out}")
        return Ending(ExitCode.TIMED_OUT, tasks)
    return Ending(ExitCode.OK if all(t.state is good for t in tasks) else ExitCode.FAILED, tasks)


def as_asked(tasks: Sequence[Task], task_ids: Sequence[str]) -> list[Task]:
    """The tasks in the order in which they were asked for."""
    place = {task_id: n for n, task_id in enumerate(task_ids)}
    return sorted(tasks, key=lambda t: place[t.task_id])


def _row(task: Task) -> list[str | Text]:
    return [task.task_id, coloured(task.state), str(task.epoch), str((task.error or {}).get("message", ""))]
