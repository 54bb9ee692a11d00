"""Real parts for the tests: one PostgreSQL, one Temporal server and one simulator process a session; fresh databases,
made from templates, and fresh task ids for each test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from temporalio.client import Client, ScheduleActionExecutionStartWorkflow
from temporalio.service import RPCError

from testing.databases import make_databases
from testing.simulators import simulator_process
from definitions import registry
from devstack.processes.ports import LOOPBACK, free_port
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from devstack.stack.environment import SERVICES
from domain.ids import attempt_id
from domain.states import SETTLED, StepState, TaskState
from runtime.roles import Role, running
from runtime.settings import Settings
from runtime.temporal import connect
from runtime.wiring import Stores, open_stores, sweep_settings
from store.database import Database
from store.reads import Reads, TaskPage, open_reads
from store.submission import SubmissionOutcome
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport, sweep_once
from supervisor.schedule import SCHEDULE_ID
from tests.embedded_fixtures import postgres_server, temporal_server

__all__ = ["postgres_server", "temporal_server"]

ROOT = Path(__file__).parent.parent
ORDER: dict[str, Any] = {
    "customer": {"name": "Ada Okafor", "email": "ada@example.com"},
    "lines": [{"sku": "TEA-01", "quantity": 2, "unit_price_minor": 1250}],
    "currency": "EUR",
    "card_token": "tok_visa",
    "address": {
        "name": "Ada Okafor",
        "line1": "Rue du Lac 4",
        "city": "Geneva",
        "postcode": "1207",
        "country": "CH",
    },
}
MACHINE: dict[str, Any] = {
    "name": "shop-1.internal.example",
    "region": "eu-west-1",
    "machine_type": "m2.medium",
    "disk_gib": 50,
}
FULL = {"stock": 1, "payments": 1, "shipping": 1, "mail": 1}
"""Effects that stand once an order is done, by service."""
PATIENCE_S = 100.0
"""For so long a test waits for what must come: a busy machine makes it slow, and never wrong."""


def make_templates(server: EmbeddedPostgres) -> None:
    """Give a new server a migrated template of each database, and the two login roles."""
    make_databases(server.dsn, state="state_template", orders="orders_template")


@pytest.fixture(scope="session")
def templates(postgres_server: EmbeddedPostgres) -> EmbeddedPostgres:
    """The server with the templates."""
    make_templates(postgres_server)
    return postgres_server


class Databases:
    """A pair of fresh databases, made from the templates of a server: addresses by role; `with` removes it.

    Nothing is kept open, so that the server may be killed meanwhile.
    """

    def __init__(self, server: EmbeddedPostgres) -> None:
        suffix = uuid4().hex[:10]
        state, orders = f"state_{suffix}", f"orders_{suffix}"
        self._server, self._names = server, (state, orders)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {state} TEMPLATE state_template")
            connection.execute(f"CREATE DATABASE {orders} TEMPLATE orders_template")
        self.owner = server.dsn(state)
        self.orders_owner = server.dsn(orders)
        self.app = server.dsn(state, user="app", password="app")
        self.orders = server.dsn(orders, user="app", password="app")
        self.supervisor = server.dsn(state, user="sup", password="sup")

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove both, whoever is still connected."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            for name in self._names:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def databases(templates: EmbeddedPostgres) -> Iterator[Databases]:
    """Fresh databases for one test."""
    with Databases(templates) as found:
        yield found


class Simulators:
    """The remote services, their faults and their ledgers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.services = {s: f"{url}/{s}" for s in SERVICES}
        self._http = httpx.Client(base_url=url, timeout=10)

    def fault(self, service: str, kind: str, **rule: Any) -> None:
        """Make a service fail on purpose."""
        self._http.post(f"/control/{service}/faults", json={"kind": kind, **rule}).raise_for_status()

    def heal(self) -> None:
        """No service fails on purpose any more."""
        self._http.delete("/control/faults").raise_for_status()

    def reset(self) -> None:
        """Empty ledgers, no faults."""
        self._http.post("/control/reset").raise_for_status()

    def ledger(self, service: str, task_id: str) -> dict[str, Any]:
        """What a service has on record of a task: effects, tombstones, calls, refusals."""
        answer = self._http.get(f"/control/{service}/ledger", params={"task_id": task_id}).raise_for_status()
        return dict(answer.json())

    def whole_ledger(self, service: str) -> dict[str, Any]:
        """What a service has on record of all tasks."""
        return dict(self._http.get(f"/control/{service}/ledger").raise_for_status().json())

    def live(self, task_id: str) -> dict[str, int]:
        """Effects that stand, by service; services without any are left out."""
        counts = {s: sum(e["undone_at"] is None for e in self.ledger(s, task_id)["effects"]) for s in SERVICES}
        return {s: n for s, n in counts.items() if n}

    def calls(self, service: str, task_id: str, *, undo: bool = False) -> int:
        """Calls that a service has received for a task."""
        return sum(c["undo"] is undo for c in self.ledger(service, task_id)["calls"])

    def close(self) -> None:
        self._http.close()


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


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, looking again every few milliseconds.

    Raises:
        TimeoutError: It does not hold in time.
    """
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 (the condition is another process's)
            await asyncio.sleep(0.02)  # between two looks; the condition, not the time, decides


class Bench:
    """The application under test: real parts, and a few words to move them with."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        stores: Stores,
        reads: Reads,
        supervision: Supervision,
    ) -> None:
        self.settings, self.client, self.stores, self.reads = settings, client, stores, reads
        self.supervision, self._supervisor = supervision, SupervisorActivities(supervision, client)

    async def submit(
        self, record: dict[str, Any], task_id: str, definition: str = "order", **more: Any
    ) -> SubmissionOutcome:
        """Submit; the dispatchers hear of it."""
        message = {"task_id": task_id, "definition": definition, "record": record, **more}
        return await self.stores.desk.submit(self.stores.desk.parse(json.dumps(message)))

    @asynccontextmanager
    async def worker(
        self, *roles: Role, services: set[str] | None = None, settings: Settings | None = None
    ) -> AsyncIterator[None]:
        """A worker with these roles (default: scheduler, agents, callbacks; no Supervisor)."""
        wanted = set(roles) or {Role.SCHEDULER, Role.AGENTS, Role.CALLBACKS}
        async with running(settings or self.settings, self.client, wanted, services or set(SERVICES)):
            yield

    async def settled(self, *task_ids: str, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until these tasks are settled; the state of the first."""
        await self.reads.wait_state(task_ids, SETTLED, timedelta(seconds=within_s))
        return (await self.page(task_ids[0])).task.state

    async def reached(self, task_id: str, *states: TaskState, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until a task is in one of these states."""
        (task,) = await self.reads.wait_state([task_id], frozenset(states), timedelta(seconds=within_s))
        return task.state

    async def settled_with_sweeps(self, task_id: str, *, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until a task is settled, sweeping meanwhile as the Schedule would, every half second."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(TimeoutError):
                    return await self.settled(task_id, within_s=0.5)
                await self.sweep()

    async def step_reached(self, task_id: str, step: str, state: StepState) -> None:
        """Wait until a step is in this state."""

        async def there() -> bool:
            return any(s.name == step and s.state is state for s in (await self.page(task_id)).steps)

        await eventually(there)

    async def called(self, simulators: Simulators, service: str, task_id: str) -> None:
        """Wait until a service has received a call for a task."""

        async def there() -> bool:
            return simulators.calls(service, task_id) > 0

        await eventually(there)

    async def sent(self, simulators: Simulators, service: str, key: str) -> None:
        """Wait until a service has received a call with this key."""

        async def there() -> bool:
            return key in [c["key"] for c in simulators.ledger(service, key.partition(":")[0])["calls"]]

        await eventually(there)

    async def refused(self, simulators: Simulators, service: str, task_id: str) -> dict[str, Any]:
        """Wait until a service has refused a call for a task; its ledger then."""

        async def there() -> bool:
            return bool(simulators.ledger(service, task_id)["refusals"])

        await eventually(there)
        return simulators.ledger(service, task_id)

    def postpone(self, task_id: str) -> None:
        """Let a Pending task wait for an hour before it may be claimed."""
        with psycopg.connect(self.settings.admin_database_url.get_secret_value()) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(
                "UPDATE task SET not_before = clock_timestamp() + interval '1 hour' WHERE task_id = %s", (task_id,)
            )

    async def expire(self, task_id: str) -> None:
        """Let a held task's deadlines, and its running steps', be over now, without waiting for them."""
        owner = self.settings.admin_database_url.get_secret_value()
        # Not a connection that blocks: a worker in this event loop may hold the row.
        async with await psycopg.AsyncConnection.connect(owner) as connection:
            await connection.execute("SET session_replication_role = replica")
            for statement in (
                "UPDATE task SET complete_by = clock_timestamp() WHERE task_id = %s AND locked_by IS NOT NULL",
                "UPDATE step SET complete_by = clock_timestamp() WHERE task_id = %s AND state IN ('Running','Undoing')",
            ):
                await connection.execute(statement, (task_id,))

    async def page(self, task_id: str) -> TaskPage:
        """Everything on record about a task."""
        return await self.reads.page(task_id)

    async def attempts(self, task_id: str) -> list[str]:
        """Workflow ids of a task's attempts."""
        task = (await self.page(task_id)).task
        return [attempt_id(task.definition, task_id, n) for n in range(1, task.epoch + 1)]

    async def contents(self, task_id: str) -> list[Any]:
        """Everything on record about a task, without the time of looking: to see that nothing was changed."""
        page = await self.page(task_id)
        return [page.task, page.steps, page.undo_log, page.events, page.alerts]

    async def sweep(self) -> SweepReport:
        """One sweep, by hand: that there was none for long is no outage."""
        terms = sweep_settings(self.settings).model_copy(update={"interval_s": 3_600})
        return await sweep_once(self._supervisor, terms)


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
async def bench(settings: Settings, client: Client, databases: Databases) -> AsyncIterator[Bench]:
    """The application on fresh databases; no worker runs yet."""
    await _no_schedule(client)
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(settings))
        for definition in registry():
            await stores.admission.publish(definition)
        reads = await stack.enter_async_context(open_reads(databases.app))
        database = await stack.enter_async_context(Database(databases.supervisor, name="state store", size=4))
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
