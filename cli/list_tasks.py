"""`list`: tasks on record, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from cli.app import ExitCode, Output, run
from cli.environment import find_settings, reading
from cli.output import Format, print_json, print_note
from cli.screen import coloured, print_rich, table
from cli.tasks import error_text, task_json, undo_json, undo_lists
from domain.messages import Json
from domain.states import TaskState
from domain.text import clean
from operators.times import instant
from store.rows import Compensation, Task

_UNDO = frozenset({TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED})
_OPEN = frozenset(TaskState) - {TaskState.PROCESSED, TaskState.COMPENSATED}


def list_tasks(
    state: Annotated[TaskState | None, typer.Option(case_sensitive=False, help="only tasks in this state")] = None,
    definition: Annotated[str | None, typer.Option(help="only tasks of this definition")] = None,
    unfinished: Annotated[bool, typer.Option("--open", help="only tasks that are neither done nor undone")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="only tasks with an undo to finish, entry by entry")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="how many at most")] = 50,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Show tasks, newest first. Needs the state store only."""
    among = _UNDO if undo else _OPEN if unfinished else frozenset(TaskState)
    wanted = among if state is None else among & {state}
    return run(_list(wanted, clean(definition) if definition else None, undo, limit, output))


async def _list(
    states: frozenset[TaskState], definition: str | None, undo: bool, limit: int, output: Format
) -> ExitCode:
    async with reading(find_settings()) as reads:
        tasks = await reads.newest_tasks(states=states, definition=definition, limit=limit)
        logs = await reads.undo_logs([t.task_id for t in tasks]) if undo else []
    if output is Format.JSON:
        print_json([task_json(t) | (_undo_of(t, logs) if undo else {}) for t in tasks])
    elif not tasks:
        print_note("no tasks")
    elif undo:
        print_rich(undo_lists(tasks, logs))
    else:
        headings = ["task", "definition", "state", "attempts", "failures", "submitted", "by", "error"]
        print_rich(table(headings, (_list_row(t) for t in tasks)))
    return ExitCode.OK


def _undo_of(task: Task, entries: Sequence[Compensation]) -> Json:
    return {"undo_log": undo_json([e for e in entries if e.task_id == task.task_id])}


def _list_row(task: Task) -> list[str | Text]:
    return [
        task.task_id,
        f"{task.definition} v{task.version}",
        coloured(task.state),
        str(task.epoch),
        str(task.failure_count),
        instant(task.created_at),
        task.submitter,
        error_text(task.error),
    ]
