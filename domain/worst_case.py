"""What one step may cost at most: the product of all layers that repeat a call.

Temporal and the HTTP client never repeat one. An Agent does within its allowance, and the Supervisor by the threshold
and the extended waits, and once more for the attempt that is the last straw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a definition is checked by this as it is made
    from domain.definition import Definition, Step

UNDO_THRESHOLD = 5
"""Failures of one undo in a row that are answered with another try."""


@dataclass(frozen=True)
class WorstCase:
    """Attempts that the Supervisor asks for at most, and calls that the service receives."""

    attempts: int
    calls: int
    undo_attempts: int
    undo_calls: int


def worst_case(definition: Definition, step: Step) -> WorstCase:
    """What a step may cost. An undo with a quarantine is done twice, its failures counted from zero again.

    In a graph come the calls of attempts that another step has failed, which are granted anew: at most an allowance for
    each failure of a step beside it, whose number is bounded here as well.
    """
    waits = definition.extended_wait.times if definition.extended_wait else 0
    attempts = definition.threshold + waits + 1
    undos = (2 if step.undo.quarantine else 1) if step.undo else 0
    undo_attempts = undos * (UNDO_THRESHOLD + 1)
    return WorstCase(
        attempts=attempts,
        calls=attempts * step.calls,
        undo_attempts=undo_attempts,
        undo_calls=undo_attempts * step.undo.calls if step.undo else 0,
    )
