"""PostgreSQL fails over to a standby: what was acknowledged is there, and who reads a replica decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from devstack.servers.postgres import EmbeddedPostgres
from domain.faults import Unreachable
from domain.states import StepState, TaskState
from runtime.settings import Settings
from runtime.wiring import sweep_settings
from store.database import Database
from store.schema import check_schema
from store.state_store import StateStore
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities
from supervisor.sweep import sweep_once
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import copied, ended, kill, own_postgres, submitted

REPLICA = "read-only replica"
WHERE = "SELECT inet_server_port() AS port"


@dataclass
class Pair:
    """A primary and its synchronous standby."""

    primary: EmbeddedPostgres
    standby: EmbeddedPostgres

    def either(self, dsn: str, *, standby_first: bool = False) -> str:
        """The address of whichever of the two takes writes, from that of a database on the primary."""
        here, there = f"127.0.0.1:{self.primary.port}", f"127.0.0.1:{self.standby.port}"
        both = f"{there},{here}" if standby_first else f"{here},{there}"
        return f"{dsn.replace(here, both)}?target_session_attrs=read-write"

    def fail_over(self) -> None:
        """The primary dies, its standby takes its place."""
        kill(self.primary)
        with psycopg.connect(self.standby.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")

    def on_standby(self, dsn: str) -> str:
        """The address of the same database on the standby."""
        return dsn.replace(f":{self.primary.port}/", f":{self.standby.port}/")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers, of this file's own. A commit is acknowledged once the standby has it."""
    folder = tmp_path_factory.mktemp("pair")
    with own_postgres(folder / "primary") as primary:
        standby = copied(primary, folder / "standby", follows=True)
        try:
            standby.start()
            with psycopg.connect(primary.dsn(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            yield Pair(primary, standby)
        finally:
            standby.delete_data()


@pytest.fixture
def databases(pair: Pair) -> Databases:
    """Fresh databases on the primary, and so on its standby."""
    return Databases(pair.primary)


@pytest.fixture
def settings(settings: Settings, pair: Pair) -> Settings:
    """Settings of a process that goes where writes are taken."""
    names = ("database_url", "orders_url", "supervisor_database_url")
    return settings.model_copy(
        update={n: SecretStr(pair.either(getattr(settings, n).get_secret_value())) for n in names}
    )


@pytest.mark.failure(50)
@pytest.mark.demand("B1", "D5")
async def test_process_that_was_pointed_at_a_replica_decides_nothing(
    pair: Pair, databases: Databases, settings: Settings
) -> None:
    """Every decision is a write, or made under a lock: a replica refuses both."""
    async with Database(pair.on_standby(databases.app), name="state store", size=1) as replica:
        with pytest.raises(Unreachable, match=REPLICA):
            await StateStore(replica).claims.claim("worker", [("order", 1)], 4)
    async with Database(pair.on_standby(databases.supervisor), name="state store", size=1) as replica:
        with pytest.raises(Unreachable, match=REPLICA):
            await sweep_once(SupervisorActivities(Supervision(replica), None), sweep_settings(settings))
    with pytest.raises(Unreachable, match=REPLICA):
        check_schema(pair.on_standby(databases.app), "state")
    read_write = pair.on_standby(databases.app) + "?target_session_attrs=read-write"
    with pytest.raises(Unreachable, match="read-only"):
        check_schema(read_write, "state")


@pytest.mark.failure(48)
@pytest.mark.demand("A2", "B9", "C2")
async def test_no_acknowledged_order_is_lost_when_the_primary_dies_for_good(
    bench: Bench, simulators: Simulators, pair: Pair, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "latency", latency_ms=1_000, match={"task_id": f"{task_id}*"}, times=4)
    async with bench.worker():
        ids = await submitted(bench, order, task_id, 4)
        await asyncio.gather(*(bench.step_reached(i, "ship", StepState.RUNNING) for i in ids))
        ids += await submitted(bench, order, f"{task_id}-last", 4)
        pair.fail_over()
        ids += await submitted(bench, order, f"{task_id}-after", 2)
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert [simulators.live(i) for i in ids] == [FULL] * 10


@pytest.mark.failure(49)
@pytest.mark.demand("B2", "B11")
async def test_returned_primary_is_refused_by_whoever_saw_the_new_one(pair: Pair) -> None:
    if pair.primary.is_alive():
        pair.fail_over()
    async with Database(pair.either(pair.primary.dsn()), name="state store", size=1) as database:
        assert await database.rows(WHERE) == [{"port": pair.standby.port}]
        await asyncio.to_thread(pair.primary.start)
        with psycopg.connect(pair.standby.dsn(), autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises(Unreachable, match=r"old primary \(timeline 1, this process has seen 2\)"):
            await database.rows(WHERE)
        kill(pair.primary)

        async def is_back() -> bool:
            with suppress(Unreachable):  # the pool tries again after a pause that has grown meanwhile
                return await database.rows(WHERE) == [{"port": pair.standby.port}]
            return False

        await eventually(is_back)


@pytest.mark.failure(49)
@pytest.mark.demand("B2", "B11")
async def test_open_connections_to_an_old_primary_are_given_up(
    pair: Pair,
) -> None:
    if pair.primary.is_alive():
        pair.fail_over()
    kill(pair.standby)
    await asyncio.to_thread(pair.primary.start)
    address = pair.either(pair.primary.dsn(), standby_first=True)
    async with Database(address, name="state store", size=3) as database:
        assert await _ports(database, 1) == {pair.primary.port}
        await asyncio.to_thread(pair.standby.start)
        while pair.standby.port not in await _ports(database, 3):
            """The pool has one or two connections by now; it grows by one, which goes to the new primary."""
        assert await _ports(database, 3) | await _ports(database, 3) == {pair.standby.port}
    kill(pair.primary)


async def _ports(database: Database, at_once: int) -> set[int]:
    """Which server answered each of so many transactions at once."""
    return {row["port"] for (row,) in await asyncio.gather(*(database.rows(WHERE) for _ in range(at_once)))}
