"""What commands print: data on standard output, as text for people or JSON for programs; talk on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

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


class Format(StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSON = "json"


def out() -> Console:
    """Standard output. Not a terminal: nothing is cut or wrapped. Colours only on a terminal without NO_COLOR."""
    width = None if sys.stdout.isatty() else _UNBOUNDED
    return Console(width=width, markup=False, highlight=False, emoji=False)


def talk() -> Console:
    """Standard error."""
    width = None if sys.stderr.isatty() else _UNBOUNDED
    return Console(stderr=True, width=width, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """Talk on standard error."""
    talk().print(plain(text), soft_wrap=True)


def tell(text: str | Text) -> None:
    """A line of data for people."""
    out().print(text if isinstance(text, Text) else plain(text), soft_wrap=True)


def tell_json(value: Any, *, lines: bool = False) -> None:
    """Data for programs: one document, or one line of a stream."""
    text = json.dumps(value, ensure_ascii=False, default=_as_json, indent=None if lines else 2)
    print(text, flush=lines)


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Rows under headings."""
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        found.add_column(heading, overflow="fold")
    for row in rows:
        found.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return found


def plain(text: str) -> str:
    """The text without control characters: what others wrote can't steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def coloured(state: StrEnum | None) -> Text:
    """A state in its colour."""
    return Text(state.value if state else "", style=_STYLES.get(state or "", ""))


def instant(at: datetime | None) -> str:
    """An instant in UTC, to the millisecond."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z" if at else ""


def duration(span: timedelta) -> str:
    """A duration, to the second; to the tenth where it is short."""
    seconds = span.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))


def compact(value: Any) -> str:
    """JSON in one line, for a cell."""
    return json.dumps(value, ensure_ascii=False, default=_as_json) if value else ""


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
