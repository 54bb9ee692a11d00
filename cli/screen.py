"""Text with columns and colours. Apart from `output.py`, as it takes a while to load."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.output import plain, written
from domain.states import StepState, TaskState

_UNBOUNDED = 100_000
_STYLES: dict[str, str] = {
    TaskState.PROCESSED: "green",
    TaskState.COMPENSATED: "yellow",
    TaskState.ERROR: "bold red",
    TaskState.COMPENSATION_FAILED: "bold red",
    TaskState.PROCESSING: "cyan",
    TaskState.COMPENSATING: "magenta",
    StepState.COMPLETED: "green",
    StepState.RUNNING: "cyan",
    StepState.FAILED: "bold red",
    StepState.UNDONE: "yellow",
    StepState.UNDOING: "magenta",
    StepState.UNDO_FAILED: "bold red",
}


class _Screen(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Leave it to whoever runs the command."""
        raise BrokenPipeError


def data_console() -> Console:
    """Standard output. Not a terminal: nothing is cut or wrapped. Colours only on a terminal without NO_COLOR."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return _Screen(width=width, markup=False, highlight=False, emoji=False)


def note_console() -> Console:
    """Standard error."""
    width = None if sys.stderr.isatty() else _UNBOUNDED
    return _Screen(stderr=True, width=width, markup=False, highlight=False, emoji=False)


def print_rich(*parts: Text | Table) -> None:
    """Data for people."""
    with written():
        for part in parts:
            data_console().print(part, soft_wrap=isinstance(part, Text))


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Rows under headings."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        found.add_column(heading, overflow="fold")
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return found


def coloured(state: StrEnum | None) -> Text:
    """A state in its colour."""
    return Text(state.value if state else "", style=_STYLES.get(state or "", ""))
