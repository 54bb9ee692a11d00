"""Tasks and their compensation logs, as commands show them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from cli.output import compact
from cli.screen import coloured, table
from domain.messages import Json
from domain.states import UndoState
from operators.times import instant
from operators.undo_log import OUTCOMES, by_whom
from store.rows import Compensation, Task

_STYLES = {
    UndoState.UNDOING: "magenta",
    UndoState.UNDONE: "yellow",
    UndoState.FAILED: "bold red",
    UndoState.SKIPPED: "bold red",
    UndoState.CLOSED_BY_HAND: "yellow",
}
_BY_PERSON = (UndoState.SKIPPED, UndoState.CLOSED_BY_HAND)


def task_json(task: Task) -> Json:
    """A task for programs."""
    return task.model_dump(exclude={"record_digest"})


def error_text(error: Json | None) -> str:
    """What is said of an error on record."""
    return str(error.get("message") or compact(error)) if error else ""


def undo_table(log: Sequence[Compensation]) -> Table:
    """The log of one task, last begun first."""
    return table(["seq", "step", "action", "outcome", "undone", "error or note"], map(_row, reversed(log)))


def undo_lists(tasks: Sequence[Task], entries: Sequence[Compensation]) -> Table:
    """The logs of several tasks, one line an entry; a task that has begun nothing has a line of its own."""
    headings = ["task", "state", "held by", "seq", "step", "action", "outcome", "undone", "error or note"]
    rows = []
    for task in tasks:
        head: list[str | Text] = [task.task_id, coloured(task.state), task.locked_by or ""]
        log = [_row(e) for e in reversed(entries) if e.task_id == task.task_id]
        rows += [[*head, *cells] for cells in log or [["", "", "", "nothing to undo", "", ""]]]
    return table(headings, rows)


def undo_json(log: Sequence[Compensation]) -> list[Json]:
    """The log of one task for programs, last begun first."""
    return [e.model_dump(exclude={"task_id"}) | {"outcome": OUTCOMES[e.state]} for e in reversed(log)]


def _row(entry: Compensation) -> list[str | Text]:
    outcome = Text(OUTCOMES[entry.state], style=_STYLES.get(entry.state, ""))
    return [str(entry.seq), entry.step, entry.action, outcome, instant(entry.undone_at), _note(entry)]


def _note(entry: Compensation) -> str:
    if entry.state in _BY_PERSON:
        return by_whom(entry)
    if entry.state.is_open and entry.quarantined_until:
        return f"in quarantine until {instant(entry.quarantined_until)}, then undone once more"
    return error_text(entry.error)
