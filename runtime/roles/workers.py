"""Temporal workers as the roles run them: started together, stopped together, with all that they call known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from temporalio.worker import Worker

from activities.call_loop import Agents
from activities.draining import Draining
from domain.faults import UsageError


@asynccontextmanager
async def at_work(workers: Mapping[str, Worker], draining: Draining) -> AsyncIterator[None]:
    """Workers that start together and stop together; each is named until it has stopped."""

    async def stop(name: str, worker: Worker) -> None:
        await worker.shutdown()
        draining.left.remove(name)

    async with AsyncExitStack() as stack:
        for name, worker in workers.items():
            await stack.enter_async_context(worker)
            draining.left.append(name)
        try:
            yield
        finally:
            await asyncio.gather(*(stop(name, worker) for name, worker in workers.items()))


def check_access(agents: Agents, services: set[str]) -> None:
    """Refuse to begin without the address, or a credential, of a service that is called.

    Raises:
        UsageError: Some are missing; names the settings.
    """
    if missing := agents.missing(services):
        raise UsageError(f"a service that this worker calls can't be called: {'; '.join(missing)}")
