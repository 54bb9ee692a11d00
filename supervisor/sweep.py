"""A bounded sweep: the Supervisor's workflow, started by a Temporal Schedule, and the same without Temporal."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from supervisor.activities import PageRequest, SupervisorActivities, SweepReport, SweepSettings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Request = TypeVar("Request")
Result = TypeVar("Result")

_TIMEOUT = timedelta(seconds=15)
_RETRY = RetryPolicy(maximum_attempts=2)
_BESIDE = (SupervisorActivities.end_stale_runs, SupervisorActivities.watch)


class _Perform(Protocol):
    """How a sweep has an activity carried out."""

    async def __call__(
        self, method: Callable[[SupervisorActivities, Request], Awaitable[Result]], request: Request, /
    ) -> Result: ...


@workflow.defn(name="Supervise")
class Supervise:
    """Sweeps once, page by page."""

    @workflow.run
    async def run(self, terms: SweepSettings) -> SweepReport:
        """Find what expired, and ask for its recovery. Returns what was found and changed.

        To end stale runs and to watch neither waits for the pages nor delays them.
        """
        others = [asyncio.create_task(_locally(activity, terms)) for activity in _BESIDE]
        try:
            return await _pages(_locally, terms)
        finally:
            await asyncio.gather(*others)


async def sweep_once(activities: SupervisorActivities, terms: SweepSettings) -> SweepReport:
    """The same without Temporal, as `starter.py supervise` does it. It ends also the runs that it took tasks from."""

    async def at_once(method: Callable[[SupervisorActivities, Request], Awaitable[Result]], request: Request) -> Result:
        return await method(activities, request)

    report = await _pages(at_once, terms)
    await asyncio.gather(*(at_once(activity, terms) for activity in _BESIDE))
    return report


async def _locally(method: Callable[[SupervisorActivities, Request], Awaitable[Result]], request: Request) -> Result:
    return await workflow.execute_local_activity_method(
        method, request, start_to_close_timeout=_TIMEOUT, retry_policy=_RETRY
    )


async def _pages(perform: _Perform, terms: SweepSettings) -> SweepReport:
    report = await perform(SupervisorActivities.begin_sweep, terms)
    request: PageRequest | None = PageRequest(terms=terms, sweep=report.sweep)
    while request is not None and report.pages < terms.pages:
        page = await perform(SupervisorActivities.sweep_page, request)
        report = SweepReport(
            sweep=report.sweep,
            found=report.found + page.found,
            changed=report.changed + page.changed,
            pages=report.pages + 1,
            oldest_overdue_s=max(report.oldest_overdue_s, page.oldest_overdue_s),
        )
        request = page.following
    await perform(SupervisorActivities.finish_sweep, report)
    return report
