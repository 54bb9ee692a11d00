"""One audit: every task of a store, or some, against every invariant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from audit.checks import ALL_TASKS_CHECKS, Violation, checks_for, violations_of, violations_of_all
from audit.checks.all_tasks import AllTasks
from audit.evidence import Evidence, Ledgers, Runs, SubmissionReplies
from audit.sources.stores import PAGE, Loader
from store.admission import AdmissionCaps


@dataclass
class AuditResult:
    """What was looked at, and what does not hold. `without_ledgers`: tasks that moved after these were read."""

    tasks: int = 0
    events: int = 0
    checks: int = 0
    without_ledgers: int = 0
    task_ids: set[str] = field(default_factory=set)
    violations: list[Violation] = field(default_factory=list)


async def audit(
    loader: Loader,
    ids: Sequence[str] | None = None,
    ledgers: Ledgers | None = None,
    *,
    runs: Runs | None = None,
    replies: SubmissionReplies | None = None,
    caps: AdmissionCaps | None = None,
    page: int = PAGE,
    on_page: Callable[[AuditResult], None] = lambda _: None,
) -> AuditResult:
    """Check all tasks, or those, by the stores and by what other evidence there is. `on_page`: called after each page.

    Without `ids`, what only all tasks together show is checked as well.
    """
    evidence = Evidence(ledgers, runs, replies, caps if ids is None else None)
    result, all_tasks = AuditResult(), AllTasks(evidence)
    async for tasks in loader.pages(ids, evidence, size=page):
        for task in tasks:
            result.tasks += 1
            result.events += len(task.events)
            result.checks += len(checks_for(task))
            result.without_ledgers += ledgers is not None and not task.ledgers
            result.violations += violations_of(task)
            all_tasks.add(task)
        on_page(result)
    result.task_ids = all_tasks.task_ids
    if ids is None:
        all_tasks.orphans = await loader.orphans(size=page)
        result.checks += len(ALL_TASKS_CHECKS)
        result.violations += violations_of_all(all_tasks)
    return result
