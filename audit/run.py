"""One audit: every task of a store, or some, against every invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from audit.checks.whole import Whole
from audit.evidence import Answers, Caps, Ledgers, Runs, Witnesses
from audit.judge import WHOLE_CHECKS, Violation, checks_of, judge, judge_whole
from audit.sources import PAGE, Loader


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
    runs: Runs | None = None,
    answers: Answers | None = None,
    caps: Caps | None = None,
    page: int = PAGE,
    tell: Callable[[Findings], None] = lambda _: None,
) -> Findings:
    """Judge all tasks, or those, by the stores and by whoever else bears witness; `tell` is called after each page.

    Without `ids`, what only all tasks together show is judged as well.
    """
    witnesses = Witnesses(ledgers, runs, answers, caps if ids is None else None)
    found, whole = Findings(), Whole(witnesses)
    async for pictures in loader.pages(ids, witnesses, page=page):
        for picture in pictures:
            found.tasks += 1
            found.events += len(picture.events)
            found.checks += len(checks_of(picture))
            found.without_ledgers += ledgers is not None and picture.ledgers is None
            found.violations += judge(picture)
            whole.add(picture)
        tell(found)
    found.seen = whole.seen
    if ids is None:
        whole.strays = await loader.strays(page=page)
        found.checks += len(WHOLE_CHECKS)
        found.violations += judge_whole(whole)
    return found
