"""`wait`, and `--wait` of other commands: until tasks are claimed, or until they rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from rich.text import Text

from cli.app import ExitCode, Ids, Output, Timeout, run
from cli.environment import find_settings, reading
from cli.output import Format, print_json, print_note
from cli.screen import coloured, note_console, print_rich, table
from cli.tasks import error_text, task_json
from domain.states import SETTLED, TaskState
from store.reads import Reads
from store.rows import Task

_RESTS = {
    TaskState.PROCESSED: SETTLED,
    TaskState.COMPENSATED: frozenset({TaskState.COMPENSATED, TaskState.COMPENSATION_FAILED}),
}
"""States in which a task rests, by the one in which it is to end."""

_POLL_S = 0.1


def wait(task_ids: Ids, timeout: Timeout = 300, output: Output = Format.TEXT) -> ExitCode:
    """Wait until tasks rest; exit code 1 if one ended other than Processed."""
    return run(_wait(task_ids, timeout, output))


async def _wait(task_ids: Sequence[str], timeout: float, output: Format) -> ExitCode:
    async with reading(find_settings()) as reads:
        await reads.known_tasks(task_ids)
        ending = await follow(reads, task_ids, timeout, output)
    if output is Format.JSON:
        print_json([task_json(t) for t in ending.tasks])
    return ending.code


@dataclass(frozen=True)
class Ending:
    """How it ended: the tasks as they were last seen, and the exit code that makes."""

    code: ExitCode
    tasks: Sequence[Task]


async def claimed(reads: Reads, task_ids: Sequence[str], within: timedelta) -> Sequence[Task]:
    """Wait until each of these tasks has been claimed once. Returns those that were not in time."""
    give_up_at = monotonic() + within.total_seconds()
    while True:
        tasks = await reads.tasks(task_ids)
        waiting = [t for t in tasks if t.epoch == 0 and not t.state.is_settled]
        if not waiting or monotonic() > give_up_at:
            return waiting
        await asyncio.sleep(_POLL_S)


async def follow(
    reads: Reads,
    task_ids: Sequence[str],
    timeout_s: float,
    output: Format,
    *,
    good: TaskState = TaskState.PROCESSED,
) -> Ending:
    """Wait until the tasks rest, and say how they ended: as text here, as JSON by the caller.

    `good`: Processed, or Compensated where an undo was asked for. The exit code is FAILED if one ended otherwise,
    TIMED_OUT if one did not end in time.
    """
    timed_out = None
    try:
        with note_console().status(f"following {len(task_ids)} tasks, at most {timeout_s:g} s"):
            tasks = await reads.wait_state(task_ids, _RESTS[good], timedelta(seconds=timeout_s))
    except TimeoutError as error:
        timed_out = error
        tasks = await reads.tasks(task_ids)
    if output is Format.TEXT:
        print_rich(table(["task", "state", "attempts", "error"], map(_row, tasks)))
    if timed_out is not None:
        print_note(f"error: timed out after {timeout_s:g} s: {timed_out}")
        return Ending(ExitCode.TIMED_OUT, tasks)
    return Ending(ExitCode.OK if all(t.state is good for t in tasks) else ExitCode.FAILED, tasks)


def _row(task: Task) -> list[str | Text]:
    return [task.task_id, coloured(task.state), str(task.epoch), error_text(task.error)]
