"""Every invariant there is, over one picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from audit import ledger_checks, log_checks, row_checks
from audit.picture import Picture

Check = Callable[[Picture], Iterator[str]]

CHECKS: tuple[Check, ...] = (*log_checks.CHECKS, *row_checks.CHECKS)
"""What the databases alone can show."""

LEDGER_CHECKS: tuple[Check, ...] = ledger_checks.CHECKS
"""What needs the services' ledgers."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold for a task. `invariant`: the name of the check."""

    invariant: str
    task_id: str
    text: str


def checks_of(picture: Picture) -> tuple[Check, ...]:
    """The checks that the picture has the data for."""
    return CHECKS if picture.ledgers is None else (*CHECKS, *LEDGER_CHECKS)


def judge(picture: Picture) -> Iterator[Violation]:
    """The violations of one task; none if all is well."""
    for check in checks_of(picture):
        for text in check(picture):
            yield Violation(check.__name__, picture.task.task_id, text)
