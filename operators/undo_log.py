"""What a task's compensation log says: what is left to undo, what a person has skipped, and who said so."""

from __future__ import annotations

from collections.abc import Sequence

from domain.states import UndoState
from store.rows import Compensation

OUTCOMES = {
    UndoState.LOGGED: "not tried",
    UndoState.UNDOING: "being undone",
    UndoState.UNDONE: "undone",
    UndoState.FAILED: "failed",
    UndoState.SKIPPED: "skipped",
    UndoState.CLOSED_BY_HAND: "closed by hand",
}
"""What has become of an entry, in words."""


def left_to_undo(log: Sequence[Compensation]) -> list[str]:
    """Steps whose undo is still to be worked, in the order in which it will be."""
    return [e.step for e in reversed(log) if e.state.is_open]


def skipped(log: Sequence[Compensation]) -> list[str]:
    """Steps that a person has left undone on purpose, last begun first."""
    return [e.step for e in reversed(log) if e.state is UndoState.SKIPPED]


def by_whom(entry: Compensation) -> str:
    """Who skipped or closed the entry, why, and on what evidence."""
    note = entry.note or {}
    evidence = f"; evidence: {note['evidence']}" if "evidence" in note else ""
    return f"by {note.get('by')}: {note.get('reason')}{evidence}"
