"""Every invariant there is, over one picture, and over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from audit.checks import ledger, log, row, run, submitter, whole
from audit.checks.whole import Finding, Whole
from audit.task_record import Picture

Check = Callable[[Picture], Iterator[str]]
WholeCheck = Callable[[Whole], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (*log.CHECKS, *row.CHECKS)
"""What the databases alone can show."""

LEDGER_CHECKS: tuple[Check, ...] = ledger.CHECKS
"""What needs the services' ledgers."""

RUN_CHECKS: tuple[Check, ...] = run.CHECKS
"""What needs Temporal."""

SUBMITTER_CHECKS: tuple[Check, ...] = submitter.CHECKS
"""What needs the submitters' log."""

WHOLE_CHECKS: tuple[WholeCheck, ...] = whole.CHECKS
"""What needs all tasks."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold for a task. `invariant`: the name of the check."""

    invariant: str
    task_id: str
    text: str


def checks_of(picture: Picture) -> tuple[Check, ...]:
    """The checks that the picture has the data for."""
    return (
        *CHECKS,
        *(LEDGER_CHECKS if picture.ledgers is not None else ()),
        *(RUN_CHECKS if picture.runs is not None else ()),
        *(SUBMITTER_CHECKS if picture.answers is not None else ()),
    )


def judge(picture: Picture) -> Iterator[Violation]:
    """The violations of one task; none if all is well."""
    for check in checks_of(picture):
        for text in check(picture):
            yield Violation(check.__name__, picture.task.task_id, text)


def judge_whole(whole: Whole) -> Iterator[Violation]:
    """The violations that only all tasks together show."""
    for check in WHOLE_CHECKS:
        for task_id, text in check(whole):
            yield Violation(check.__name__, task_id, text)
