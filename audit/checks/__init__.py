"""Every invariant there is. Each public function of a module in this folder is a check: its name is the invariant's.

A check of a task takes an `AuditedTask` and says what does not hold, a sentence each. Those in `all_tasks` take
`AllTasks`, and name the task as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isfunction
from types import ModuleType
from typing import Any

from audit.checks import all_tasks, events, ledgers, rows, runs, steps, submissions
from audit.checks.all_tasks import AllTasks, OfTask
from audit.task import AuditedTask

Check = Callable[[AuditedTask], Iterator[str]]


def _checks_in(*modules: ModuleType) -> tuple[Callable[[Any], Iterator[Any]], ...]:
    return tuple(
        found
        for module in modules
        for name, found in vars(module).items()
        if isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    )


_STORE_CHECKS: tuple[Check, ...] = _checks_in(events, steps, rows)
_LEDGER_CHECKS: tuple[Check, ...] = _checks_in(ledgers)
_RUN_CHECKS: tuple[Check, ...] = _checks_in(runs)
_SUBMISSION_CHECKS: tuple[Check, ...] = _checks_in(submissions)

TASK_CHECKS: tuple[Check, ...] = (*_STORE_CHECKS, *_LEDGER_CHECKS, *_RUN_CHECKS, *_SUBMISSION_CHECKS)
"""What is checked of one task."""

ALL_TASKS_CHECKS: tuple[Callable[[AllTasks], Iterator[OfTask]], ...] = _checks_in(all_tasks)
"""What only all tasks together can show."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold for a task. `invariant`: the name of the check."""

    invariant: str
    task_id: str
    text: str


def checks_for(task: AuditedTask) -> tuple[Check, ...]:
    """The checks that there is evidence for."""
    return (
        *_STORE_CHECKS,
        *(_LEDGER_CHECKS if task.ledgers else ()),
        *(_RUN_CHECKS if task.runs_asked_at is not None else ()),
        *(_SUBMISSION_CHECKS if task.replies is not None else ()),
    )


def violations_of(task: AuditedTask) -> Iterator[Violation]:
    """What does not hold for one task; nothing if all is well."""
    for check in checks_for(task):
        for text in check(task):
            yield Violation(check.__name__, task.row.task_id, text)


def violations_of_all(tasks: AllTasks) -> Iterator[Violation]:
    """What does not hold for all tasks together."""
    for check in ALL_TASKS_CHECKS:
        for task_id, text in check(tasks):
            yield Violation(check.__name__, task_id, text)
