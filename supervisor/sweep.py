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
        """Find what expired, and ask for its recovery. Returns what was found and changed."""
        return await _sweep(_locally, terms)


async def sweep_once(activities: SupervisorActivities, terms: SweepSettings) -> SweepReport:
    """The same sweep without Temporal, as `starter.py supervise` does it."""

    async def at_once(method: Callable[[SupervisorActivities, Request], Awaitable[Result]], request: Request) -> Result:
        return await method(activities, request)

    return await _sweep(at_once, terms)


async def _locally(method: Callable[[SupervisorActivities, Request], Awaitable[Result]], request: Request) -> Result:
    return await workflow.execute_local_activity_method(
        method, request, start_to_close_timeout=_TIMEOUT, retry_policy=_RETRY
    )


async def _sweep(perform: _Perform, terms: SweepSettings) -> SweepReport:
    """The pages; and beside them the stale runs and the watch, which neither wait for the pages nor delay them."""
    others = [
        asyncio.create_task(perform(SupervisorActivities.end_stale_runs, terms)),
        asyncio.create_task(perform(SupervisorActivities.watch, terms)),
    ]
    try:
        return await _pages(perform, terms)
    finally:
        await asyncio.gather(*others)


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
