"""Real parts for the tests: one PostgreSQL, one Temporal server and one simulator process a session; fresh databases,
made from templates, and fresh task ids for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr
from temporalio.client import Client, ScheduleActionExecutionStartWorkflow
from temporalio.service import RPCError

from devstack.processes.ports import LOOPBACK, free_port
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from runtime.settings import Settings
from runtime.temporal import connect
from runtime.wiring import open_stores
from store.database import Database
from store.reads import open_reads
from store.supervision import Supervision
from supervisor.schedule import SCHEDULE_ID
from testing.bench import Bench
from testing.databases import Databases, make_templates, publish_all
from testing.records import MACHINE, ORDER
from testing.simulators import Simulators, simulator_process
from tests.embedded_fixtures import postgres_server, temporal_server

__all__ = ["postgres_server", "temporal_server"]


@pytest.fixture(scope="session")
def templates(postgres_server: EmbeddedPostgres) -> EmbeddedPostgres:
    """The server with the templates."""
    make_templates(postgres_server)
    return postgres_server


@pytest.fixture
def databases(templates: EmbeddedPostgres) -> Iterator[Databases]:
    """Fresh databases for one test."""
    with Databases(templates) as found:
        yield found


@pytest.fixture(scope="session")
def running_simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    """The simulators, in a process of their own."""
    port = free_port()
    process = simulator_process(tmp_path_factory.mktemp("simulators"), port)
    process.start()
    process.wait_ready()
    found = Simulators(f"http://{LOOPBACK}:{port}")
    yield found
    found.close()
    process.stop()


@pytest.fixture
def simulators(running_simulators: Simulators) -> Simulators:
    """The simulators, with empty ledgers and no faults."""
    running_simulators.reset()
    return running_simulators


@pytest.fixture
def settings(databases: Databases, simulators: Simulators, tmp_path: Path) -> Settings:
    """Settings of a process on this test's databases; quick where production is patient."""
    port = free_port()
    return Settings(
        state_dir=tmp_path,
        database_url=SecretStr(databases.app),
        orders_url=SecretStr(databases.orders),
        supervisor_database_url=SecretStr(databases.supervisor),
        admin_database_url=SecretStr(databases.owner),
        admin_orders_url=SecretStr(databases.orders_owner),
        services=simulators.services,
        sweep_interval=timedelta(seconds=1),
        poll_interval=timedelta(milliseconds=500),
        shutdown_grace=timedelta(seconds=2),
        health_file=tmp_path / "alive",
        callback_port=port,
        callback_url=f"http://127.0.0.1:{port}",
        callback_secret=SecretStr("test-secret" * 3),
    )


@pytest.fixture
async def client(temporal_server: EmbeddedTemporal, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the test server, as production makes it."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    return await connect()


async def _no_schedule(client: Client) -> None:
    """Nobody sweeps yet: what an earlier test has left to the server is gone."""
    schedule = client.get_schedule_handle(SCHEDULE_ID)
    with suppress(RPCError):
        sweeping = (await schedule.describe()).info.running_actions
        await schedule.delete()
        for run in sweeping:
            if isinstance(run, ScheduleActionExecutionStartWorkflow):
                await client.get_workflow_handle(run.workflow_id).terminate()


@pytest.fixture
async def bench(settings: Settings, client: Client) -> AsyncIterator[Bench]:
    """The application on fresh databases; no worker runs yet."""
    await _no_schedule(client)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(settings))
        await publish_all(stores.admission)
        reads = await stack.enter_async_context(open_reads(settings.database_url.get_secret_value()))
        supervisor = settings.supervisor_database_url.get_secret_value()
        database = await stack.enter_async_context(Database(supervisor, name="state store", size=4))
        yield Bench(settings, client, stores, reads, Supervision(database))


@pytest.fixture
def order() -> dict[str, Any]:
    """A business record of an order that goes well; a copy, to be changed at will."""
    return deepcopy(ORDER)


@pytest.fixture
def machine() -> dict[str, Any]:
    """A business record of a provisioning that goes well."""
    return deepcopy(MACHINE)


@pytest.fixture
def task_id() -> str:
    """An id that no other test has used: Temporal remembers workflow ids across tests."""
    return f"t-{uuid4().hex[:12]}"
