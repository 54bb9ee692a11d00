"""`watch`: tasks as they move; a live table on a terminal, a line an event elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Protocol

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.app import ExitCode, Output, checked_ids, run
from cli.environment import find_settings, reading
from cli.output import Format, print_json, print_line
from cli.screen import coloured, data_console, table
from cli.show import event_row
from cli.tasks import error_text
from domain.states import StepState
from operators.times import instant
from store.reads import Reads
from store.rows import Event, Step, Task

_POLL_S = 0.3
_MOST = 200
_MARKS = {
    StepState.NOT_STARTED: "·",
    StepState.RUNNING: "…",
    StepState.COMPLETED: "✓",
    StepState.FAILED: "✗",
    StepState.UNDOING: "↶",
    StepState.UNDONE: "↩",
    StepState.UNDO_FAILED: "✗",
}


class View(Protocol):
    """Where what was seen goes."""

    async def show(self, reads: Reads, tasks: Sequence[Task]) -> None:
        """Show these tasks as they are now."""


def watch(
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", callback=checked_ids, help="all recent ones by default")
    ] = None,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Watch tasks move until they rest; without ids, all recent ones until Ctrl-C."""
    return run(_watch(task_ids or [], output))


async def _watch(task_ids: Sequence[str], output: Format) -> ExitCode:
    async with reading(find_settings()) as reads:
        with _view(output, from_now_on=not task_ids) as view:
            while True:
                tasks = await (reads.known_tasks(task_ids) if task_ids else reads.newest_tasks(limit=_MOST))
                await view.show(reads, tasks)
                if task_ids and all(t.state.is_settled for t in tasks):
                    return ExitCode.OK
                await asyncio.sleep(_POLL_S)


@contextmanager
def _view(output: Format, *, from_now_on: bool) -> Iterator[View]:
    console = data_console()
    if output is Format.JSON or not console.is_terminal:
        yield EventLines(output, from_now_on=from_now_on)
        return
    with Live(console=console, auto_refresh=False, screen=from_now_on) as live:
        yield LiveTable(live, most=max(5, console.height - 3))


class EventLines:
    """Each new event once, as a line. `from_now_on`: those that are there at first are passed over."""

    def __init__(self, output: Format, *, from_now_on: bool) -> None:
        self._output, self._skip = output, from_now_on
        self._seen: dict[str, int] = {}

    async def show(self, reads: Reads, tasks: Sequence[Task]) -> None:
        """Print what is new."""
        moved = [t.task_id for t in tasks if t.last_event > self._seen.get(t.task_id, 0)]
        if self._skip:
            self._seen, self._skip = {t.task_id: t.last_event for t in tasks}, False
            return
        events = await reads.events(moved) if moved else []
        for event in sorted(events, key=lambda e: (e.at, e.task_id, e.number)):
            if event.number > self._seen.get(event.task_id, 0):
                self._print(event)
        self._seen |= {e.task_id: e.number for e in events}

    def _print(self, event: Event) -> None:
        if self._output is Format.JSON:
            print_json(event.model_dump(), lines=True)
            return
        number, at, kind, states, actor, detail = (str(cell) for cell in event_row(event))
        print_line(f"{at}  {event.task_id}  {number}  {kind}  {states}  {actor}  {detail}")


class LiveTable:
    """One row a task, drawn anew each time."""

    def __init__(self, live: Live, *, most: int) -> None:
        self._live, self._most = live, most

    async def show(self, reads: Reads, tasks: Sequence[Task]) -> None:
        """Draw the table."""
        shown = tasks[: self._most]
        steps: dict[str, list[Step]] = {t.task_id: [] for t in shown}
        for step in await reads.steps(list(steps)):
            steps[step.task_id].append(step)
        self._live.update(_table(shown, steps), refresh=True)


def _table(tasks: Sequence[Task], steps: dict[str, list[Step]]) -> Table:
    headings = ["task", "definition", "state", "attempts", "steps", "since", "error"]
    return table(headings, (_row(t, steps[t.task_id]) for t in tasks))


def _row(task: Task, steps: list[Step]) -> list[str | Text]:
    marks = [
        Text.assemble(s.name, "\N{NO-BREAK SPACE}", Text(_MARKS[s.state], style=coloured(s.state).style), "  ")
        for s in steps
    ]
    return [
        task.task_id,
        task.definition,
        coloured(task.state),
        str(task.epoch),
        Text.assemble(*marks),
        instant(task.state_since),
        error_text(task.error),
    ]
