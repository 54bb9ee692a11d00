"""The Supervisor's workflow: one bounded sweep, started by a Temporal Schedule (D1, D4)."""

from __future__ import annotations

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
        SweepTerms,
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
    async def run(self, terms: SweepTerms) -> SweepReport:
        """Find what expired, ask for its recovery, and alert on what is stuck. Returns what was found and changed."""
        start = await _local(SupervisorActivities.begin_sweep, terms)
        report = SweepReport(sweep=start.sweep)
        request = PageRequest(terms=terms, sweep=start.sweep, counts=start.counts)
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
