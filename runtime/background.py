"""What a process does beside its work, for as long as it works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import structlog
from temporalio.service import RPCError

from activities.draining import Draining
from domain.faults import Unreachable

log = structlog.get_logger(__name__)


@asynccontextmanager
async def in_background(draining: Draining, *jobs: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these jobs for as long as the context lasts; one that dies is a bug, and takes the process with it."""
    tasks = [asyncio.create_task(job) for job in jobs]

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("a background job died", error=repr(task.exception()))
            draining.begin()

    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


async def repeat(interval: timedelta, job: Callable[[], Awaitable[None]]) -> None:
    """Do a job every so often until cancelled. What fails it is logged, and it is done again all the same."""
    while True:
        await asyncio.sleep(interval.total_seconds())
        try:
            await job()
        except (Unreachable, RPCError) as error:
            log.warning("background job postponed", job=job.__name__, error=str(error))
        except Exception:
            log.exception("background job failed", job=job.__name__)
