"""The Supervisor's activities: one page of a sweep, and the record of what a sweep did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client

from store.supervision import ExpiredTask, Recovery, Supervision
from supervisor.decide import decide
from supervisor.runs import end_runs

_STALE_RUNS = 200
"""Runs that one sweep ends at most."""


class SweepSettings(BaseModel):
    """Bounds of a sweep: span of deadlines, rows a page, pages at most; and the interval, to know an outage by.

    Each has a default, so that a Schedule of another release starts sweeps that this one understands.

    Attributes:
        recovery_per_s: Tasks a second that are let go at most. recovery_ramp_s: time until it is that many.
        stuck_after_s: For how long a task may be due with nobody claiming it, or open without progress beyond what its
            definition allows for. undo_stalled_after_s: how long an undo may take. worker_gone_s: a definition that no
            worker has shown for so long has none.
    """

    interval_s: float = 10.0
    window_s: float = 604_800.0
    page: int = 200
    pages: int = 20
    recovery_per_s: float = 20.0
    recovery_ramp_s: float = 10.0
    stuck_after_s: float = 300.0
    undo_stalled_after_s: float = 600.0
    worker_gone_s: float = 30.0

    @property
    def outage(self) -> timedelta:
        """Supervision was out if no sweep has finished for so long."""
        return timedelta(seconds=3 * self.interval_s)

    @property
    def paging(self) -> timedelta:
        """No page is begun after so long, so that the sweep ends within its interval."""
        return timedelta(seconds=0.6 * self.interval_s)


class PageRequest(BaseModel):
    """The page behind `after_at`, `after_id`."""

    terms: SweepSettings
    sweep: int
    after_at: datetime | None = None
    after_id: str = ""


class PageReport(BaseModel):
    """What a page held and what was changed. `following`: the page behind it; None behind the last one."""

    found: int
    changed: int
    oldest_overdue_s: float
    following: PageRequest | None


class SweepReport(BaseModel):
    """What a sweep has done so far."""

    sweep: int
    found: int = 0
    changed: int = 0
    pages: int = 0
    oldest_overdue_s: float = 0.0


class SupervisorActivities:
    """Reads, decides, asks. Has no Agent, and a database role that can't begin or complete a step."""

    def __init__(self, supervision: Supervision, client: Client | None) -> None:
        self._supervision, self._client = supervision, client

    @activity.defn
    async def begin_sweep(self, terms: SweepSettings) -> SweepReport:
        """Begin a sweep. Repeating it begins another record, which does no harm."""
        return SweepReport(sweep=await self._supervision.begin_sweep(terms.outage))

    @activity.defn
    async def sweep_page(self, request: PageRequest) -> PageReport:
        """One page: read, decide, one guarded update. Repeating it finds rows that are no longer expired."""
        terms = request.terms
        tasks = await self._supervision.expired(
            window=timedelta(seconds=terms.window_s),
            page=terms.page,
            after=(request.after_at, request.after_id),
            sweep=request.sweep,
            within=terms.paging,
        )
        decisions = [d for t in tasks if (d := await self._decide(t)) is not None]
        evicted = await self._recover(request, decisions) if decisions else []
        following = None
        if len(tasks) == terms.page:
            behind = {"after_at": tasks[-1].complete_by, "after_id": tasks[-1].task_id}
            following = request.model_copy(update=behind)
        return PageReport(
            found=len(tasks),
            changed=len(evicted),
            oldest_overdue_s=max((t.overdue_s for t in tasks), default=0.0),
            following=following,
        )

    @activity.defn
    async def finish_sweep(self, report: SweepReport) -> None:
        """Record that a sweep is over. Repeating it records the same."""
        await self._supervision.finish_sweep(report.sweep)

    @activity.defn
    async def end_stale_runs(self, _: SweepSettings) -> None:
        """End the runs that have lost their task. What can't be done now is left for a later sweep."""
        if self._client is not None:
            runs = await self._supervision.stale_runs(_STALE_RUNS)
            done = await end_runs(self._client, runs)
            for attempt, fault in done.items():
                if fault:
                    await self._supervision.workflow_code_fails(attempt, fault)
            await self._supervision.looked_at(runs, done=[*done])

    @activity.defn
    async def watch(self, terms: SweepSettings) -> None:
        """Look for what no deadline tells of. Repeating it alerts on nothing twice."""
        await self._supervision.watch(
            stuck_after=timedelta(seconds=terms.stuck_after_s),
            undo_stalled_after=timedelta(seconds=terms.undo_stalled_after_s),
            worker_gone=timedelta(seconds=terms.worker_gone_s),
        )

    @property
    def all(self) -> list[Callable[..., Awaitable[object]]]:
        """What a worker of the Supervisor registers."""
        return [self.begin_sweep, self.sweep_page, self.finish_sweep, self.end_stale_runs, self.watch]

    async def _decide(self, task: ExpiredTask) -> Recovery | None:
        """What to ask for; None, with an alert, where the policies on record can't be read."""
        try:
            return decide(task)
        except Exception as error:
            await self._supervision.left_out(task.task_id, f"nothing can be decided: {type(error).__name__}: {error}")
            return None

    async def _recover(self, request: PageRequest, decisions: Sequence[Recovery]) -> list[tuple[str, str]]:
        return await self._supervision.recover(
            decisions,
            sweep=request.sweep,
            per_s=request.terms.recovery_per_s,
            ramp=timedelta(seconds=request.terms.recovery_ramp_s),
        )
