"""Mistakes in the undo of a task."""

from __future__ import annotations

from typing import Any

from activities.boundaries import Boundaries
from chaos.planted.bug import Bug
from chaos.planted.patches import Behaviour, Statement
from domain.messages import Completed

_FROM_COMPLETED = (
    "AND c.state IN ('Logged', 'Undoing', 'Failed')",
    "AND c.state IN ('Logged', 'Undoing', 'Failed') AND EXISTS (SELECT 1 FROM step AS k WHERE"
    " k.task_id = c.task_id AND k.name = c.step AND k.state IN ('Completed', 'Undoing', 'UndoFailed'))",
)


def swallowing_refused_undo(real: Any) -> Any:
    async def _fail(self: Any, hold: Any, written: Any, outcome: Any) -> Any:
        if written.undo:
            return await self.advance(hold, written, written.then, Completed(result={}, calls=None))
        return await real(self, hold, written, outcome)

    return _fail


UNDO_BUGS = (
    Bug(
        "forward_order_compensation",
        "steps are undone in the order in which they were done",
        (
            Statement("snapshot", "ORDER BY c.seq DESC", "ORDER BY c.seq"),
            Statement("undo_advance", "ORDER BY c.seq DESC\n    LIMIT 1", "ORDER BY c.seq\n    LIMIT 1"),
        ),
        ("order cancelled: after:undo_complete:stock",),
        ("undo_runs_in_reverse", "ledgers_show_undo_in_reverse"),
    ),
    Bug(
        "swallow_compensation_failure",
        "an undo that was refused is logged, and passed over",
        (Behaviour(Boundaries, "_fail", swallowing_refused_undo),),
        ("undo refused for good",),
        ("compensated_has_no_effect", "money_adds_up"),
    ),
    Bug(
        "unknown_outcome_not_undone",
        "only steps that are Completed are undone",
        (Statement("snapshot", *_FROM_COMPLETED), Statement("undo_advance", *_FROM_COMPLETED)),
        ("order declined: after:claim",),
        ("compensated_is_undone",),
    ),
)
