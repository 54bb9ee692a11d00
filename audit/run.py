"""One audit: every task of a store, or some, against every invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from audit.judge import Violation, checks_of, judge
from audit.load import PAGE, Ledgers, Loader

UNKNOWN = "effect_belongs_to_a_task"


@dataclass
class Findings:
    """What was looked at, and what does not hold. `without_ledgers`: tasks that moved after these were read."""

    tasks: int = 0
    events: int = 0
    checks: int = 0
    without_ledgers: int = 0
    seen: set[str] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)


async def audit(
    loader: Loader,
    ids: Sequence[str] | None = None,
    ledgers: Ledgers | None = None,
    *,
    page: int = PAGE,
    tell: Callable[[Findings], None] = lambda _: None,
) -> Findings:
    """Judge all tasks, or those; `tell` is called after each page."""
    found = Findings()
    async for pictures in loader.pages(ids, ledgers, page=page):
        for picture in pictures:
            found.tasks += 1
            found.events += len(picture.events)
            found.checks += len(checks_of(picture))
            found.without_ledgers += ledgers is not None and picture.ledgers is None
            if ids is not None or ledgers is not None:
                found.seen.add(picture.task.task_id)
            found.violations += judge(picture)
        tell(found)
    if ledgers is not None and ids is None:
        found.violations += _strangers(ledgers, found.seen)
    return found


def _strangers(ledgers: Ledgers, seen: set[str]) -> list[Violation]:
    """Effects of tasks that are not in the store: none was invented (failures 1)."""
    return [
        Violation(UNKNOWN, task_id, f"{service} has effect {effect.key}, there is no such task")
        for task_id, services in sorted(ledgers.by_task.items())
        if task_id not in seen
        for service, ledger in services.items()
        for effect in ledger.effects
    ]
