"""The Supervisor's workflow: one bounded sweep, started by a Temporal Schedule."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from supervisor.activities import (
        PageRequest,
        SupervisorActivities,
        SweepEnd,
        SweepReport,
        SweepSettings,
        add_page,
    )

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Request = TypeVar("Request")
Answer = TypeVar("Answer")

_TIMEOUT = timedelta(seconds=15)
_RETRY = RetryPolicy(maximum_attempts=2)


@workflow.defn(name="Supervise")
class Supervise:
    """Sweeps once, page by page."""

    @workflow.run
    async def run(self, terms: SweepSettings) -> SweepReport:
        """Find what expired, and ask for its recovery. Returns what was found and changed.

        To end stale runs and to watch are duties of their own: neither waits for the pages, nor they for it.
        """
        others = [
            asyncio.create_task(_local(SupervisorActivities.end_stale_runs, terms)),
            asyncio.create_task(_local(SupervisorActivities.watch, terms)),
        ]
        report = await self._sweep(terms)
        await asyncio.gather(*others)
        return report

    async def _sweep(self, terms: SweepSettings) -> SweepReport:
        start = await _local(SupervisorActivities.begin_sweep, terms)
        report = SweepReport(sweep=start.sweep)
        request = PageRequest(terms=terms, sweep=start.sweep)
        while report.pages < terms.pages:
            page = await _local(SupervisorActivities.sweep_page, request)
            report = add_page(report, page)
            if page.last:
                break
            request = request.model_copy(update={"after_at": page.after_at, "after_id": page.after_id})
        await _local(SupervisorActivities.finish_sweep, SweepEnd(terms=terms, report=report))
        return report


async def _local(method: Callable[[SupervisorActivities, Request], Awaitable[Answer]], request: Request) -> Answer:
    return await workflow.execute_local_activity_method(
        method, request, start_to_close_timeout=_TIMEOUT, retry_policy=_RETRY
    )
