"""The planted bugs: what people get wrong, how it is put in, and which invariant must show it."""

from __future__ import annotations

import os

from chaos.planted.boundaries import BOUNDARIES_BUGS
from chaos.planted.bug import Bug
from chaos.planted.calls import CALLS_BUGS
from chaos.planted.patches import put_in
from chaos.planted.submission import SUBMISSION_BUGS
from chaos.planted.supervision import SUPERVISION_BUGS
from chaos.planted.temporal import TEMPORAL_BUGS
from chaos.planted.undo import UNDO_BUGS

NOTHING = "-"
"""In place of a bug's name: the same without one."""

BUGS = (*CALLS_BUGS, *BOUNDARIES_BUGS, *UNDO_BUGS, *SUPERVISION_BUGS, *SUBMISSION_BUGS, *TEMPORAL_BUGS)


def named(name: str) -> Bug:
    """The bug of that name; KeyError if there is none."""
    return {bug.name: bug for bug in BUGS}[name]


def planted() -> Bug | None:
    """The bug that this process is asked to have, by `PLANT`."""
    return named(name) if (name := os.environ.get("PLANT")) else None


def plant() -> None:
    """Put that bug into this process, for good; nothing, if it is not asked for."""
    if bug := planted():
        put_in(bug.patches)
