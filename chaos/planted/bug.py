"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.planted.patches import Patch

CHAOS = "chaos"
"""In place of cases: the short run of the chaos tier, with other seeds until it is caught."""


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        mistake: What somebody did, in a line. patches: How it is planted, in every process of a run.
        tier: Cases of the crash matrix, see `tier.py`; or `CHAOS`.
        shown_by: Invariants; or `every_kill_comes`, the matrix's guard, where a write is dropped that nobody else knows
            of. A run that reports none of them has missed it.
        by_submitter: It is one of submitters, which the chaos tier's own process is.
        disarms: SQL of the owner, in that run's database only: takes away what would refuse or mend the bug before
            anybody sees it, and puts it back afterwards.
    """

    name: str
    mistake: str
    patches: tuple[Patch, ...]
    tier: tuple[str, ...] | str
    shown_by: tuple[str, ...]
    disarms: tuple[str, ...] = ()
    by_submitter: bool = False


def without(*guards: str) -> tuple[str, str]:
    """Statements that switch guards off, and on again; each as `table.trigger`."""
    named = [guard.split(".") for guard in guards]
    off, on = (
        [f"ALTER TABLE {table} {what} TRIGGER {trigger}" for table, trigger in named] for what in ("DISABLE", "ENABLE")
    )
    return "; ".join(off), "; ".join(on)
