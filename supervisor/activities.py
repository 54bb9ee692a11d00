"""The Supervisor's activities: one page of a sweep, and the record of what a sweep did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client

from domain.states import TaskState
from store.supervision import Recovery, Supervision
from supervisor.decide import decide
from supervisor.runs import end_runs

_GIVEN_UP = (TaskState.ERROR, TaskState.COMPENSATION_FAILED)


class SweepTerms(BaseModel):
    """Bounds of a sweep (D4): span of deadlines, rows a page, pages at most; and the interval, to know an outage by.

    Attributes:
        recovery_per_s: Tasks a second that are let go at most. recovery_ramp_s: time until it is that many (D12).
        stuck_after_s: For how long a task may be due with nobody claiming it. undo_stalled_after_s: how long an undo
            may take. worker_gone_s: a definition that no worker has shown for so long has none (D11).
    """

    interval_s: float
    window_s: float
    page: int
    pages: int
    recovery_per_s: float
    recovery_ramp_s: float
    stuck_after_s: float
    undo_stalled_after_s: float
    worker_gone_s: float


class SweepStart(BaseModel):
    """A sweep that was begun. `counts`: whether its expiries count as failures."""

    sweep: int
    counts: bool


class PageRequest(BaseModel):
    """The page behind `after_at`, `after_id`."""

    terms: SweepTerms
    sweep: int
    counts: bool
    after_at: datetime | None = None
    after_id: str = ""


class PageReport(BaseModel):
    """What a page held and what was changed; `after_*` leads to the next one, unless it was the `last`."""

    found: int
    changed: int
    last: bool
    after_at: datetime | None
    after_id: str
    oldest_overdue_s: float


class SweepReport(BaseModel):
    """What a sweep did."""

    sweep: int
    found: int = 0
    changed: int = 0
    pages: int = 0
    oldest_overdue_s: float = 0.0


class SweepEnd(BaseModel):
    """The end of a sweep, and what it did."""

    terms: SweepTerms
    report: SweepReport


class SupervisorActivities:
    """Reads, decides, asks. Has no Agent, and a database role that can't begin or complete a step (D3)."""

    def __init__(self, supervision: Supervision, client: Client | None) -> None:
        self._supervision, self._client = supervision, client

    @activity.defn
    async def begin_sweep(self, terms: SweepTerms) -> SweepStart:
        """Begin a sweep. Repeating it begins another record, which does no harm."""
        sweep, age = await self._supervision.begin_sweep()
        return SweepStart(sweep=sweep, counts=age is None or age <= timedelta(seconds=3 * terms.interval_s))

    @activity.defn
    async def sweep_page(self, request: PageRequest) -> PageReport:
        """One page: read, decide, one guarded update. Repeating it finds rows that are no longer expired."""
        terms = request.terms
        tasks = await self._supervision.expired(
            window=timedelta(seconds=terms.window_s),
            page=terms.page,
            after=(request.after_at, request.after_id),
        )
        decisions = [decide(task, counts=request.counts) for task in tasks]
        evicted = await self._recover(request, decisions) if decisions else []
        if self._client is not None:
            await end_runs(self._client, evicted, {d.task_id for d in decisions if d.target in _GIVEN_UP})
        return PageReport(
            found=len(tasks),
            changed=len(evicted),
            last=len(tasks) < terms.page,
            after_at=tasks[-1].complete_by if tasks else None,
            after_id=tasks[-1].task_id if tasks else "",
            oldest_overdue_s=max((t.overdue_s for t in tasks), default=0.0),
        )

    @activity.defn
    async def finish_sweep(self, end: SweepEnd) -> None:
        """Record what a sweep did, and look for what no deadline tells of. Repeating it alerts on nothing twice."""
        report, terms = end.report, end.terms
        await self._supervision.finish_sweep(
            report.sweep,
            found=report.found,
            pages=report.pages,
            oldest_overdue_s=report.oldest_overdue_s,
        )
        await self._supervision.watch(
            stuck_after=timedelta(seconds=terms.stuck_after_s),
            undo_stalled_after=timedelta(seconds=terms.undo_stalled_after_s),
            worker_gone=timedelta(seconds=terms.worker_gone_s),
        )

    async def _recover(self, request: PageRequest, decisions: Sequence[Recovery]) -> list[tuple[str, str]]:
        return await self._supervision.recover(
            decisions,
            "supervisor",
            sweep=request.sweep,
            per_s=request.terms.recovery_per_s,
            ramp=timedelta(seconds=request.terms.recovery_ramp_s),
        )


async def sweep_once(activities: SupervisorActivities, terms: SweepTerms) -> SweepReport:
    """One whole sweep without Temporal: what `starter.py supervise` does, and what the workflow does in steps."""
    start = await activities.begin_sweep(terms)
    report = SweepReport(sweep=start.sweep)
    request = PageRequest(terms=terms, sweep=start.sweep, counts=start.counts)
    while report.pages < terms.pages:
        page = await activities.sweep_page(request)
        report = add_page(report, page)
        if page.last:
            break
        request = request.model_copy(update={"after_at": page.after_at, "after_id": page.after_id})
    await activities.finish_sweep(SweepEnd(terms=terms, report=report))
    return report


def add_page(report: SweepReport, page: PageReport) -> SweepReport:
    """A sweep's report with one more page."""
    return report.model_copy(
        update={
            "found": report.found + page.found,
            "changed": report.changed + page.changed,
            "pages": report.pages + 1,
            "oldest_overdue_s": max(report.oldest_overdue_s, page.oldest_overdue_s),
        }
    )
