"""The role `supervisor`: the worker that sweeps, with the rights of the Supervisor only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.client import Client
from temporalio.worker import Worker

from runtime.settings import Settings, address
from runtime.wiring import process_name
from store.database import Database
from store.schema import check_schema
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities
from supervisor.schedule import QUEUE
from supervisor.sweep import Supervise


@asynccontextmanager
async def supervisor_worker(settings: Settings, client: Client) -> AsyncIterator[Worker]:
    """The worker, not yet started, with its connections open.

    Raises:
        Unreachable: The state store has no address, does not answer, or has another schema version.
    """
    dsn = address(settings, "supervisor_database_url")
    check_schema(dsn, "state")
    async with Database(dsn, name="state store", size=2) as database:
        yield Worker(
            client,
            task_queue=QUEUE,
            workflows=[Supervise],
            activities=SupervisorActivities(Supervision(database), client).all,
            identity=process_name("supervisor"),
            graceful_shutdown_timeout=settings.shutdown_grace,
        )
