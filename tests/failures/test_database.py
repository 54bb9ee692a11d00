"""What transactions and the pool do when the database gives them up, is slow or silent, or is migrated under them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from pydantic import SecretStr

import store.database
from chaos.proxy import Proxy
from devstack.servers.postgres import EmbeddedPostgres
from domain.faults import Unreachable
from domain.states import StepState, TaskState
from runtime.settings import Settings
from store.database import Database
from store.migrate import migrate
from store.schema import check_schema
from testing import ROOT
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.settings import environment
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import ended, submitted

COIN = "UPDATE purse SET coins = coins + 1 WHERE name = %(name)s"
TRIED = "SELECT nextval('tries')"
GATE = "SELECT 1 FROM purse WHERE name = 'gate' FOR SHARE"
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"
SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"


class Purses:
    """A table that the application may write, and a gate before which its transactions can be made to wait."""

    def __init__(self, owner: psycopg.AsyncConnection[Any]) -> None:
        self._owner = owner

    async def create(self) -> None:
        """Make the table, and a count of tries that no rollback takes back."""
        await self._owner.execute("CREATE TABLE purse (name text PRIMARY KEY, coins int NOT NULL)")
        await self._owner.execute("CREATE SEQUENCE tries")
        await self._owner.execute("INSERT INTO purse VALUES ('one', 0), ('two', 0), ('gate', 0)")
        await self._owner.execute("GRANT SELECT, UPDATE ON purse, tries TO app")

    @asynccontextmanager
    async def gate_closed(self, waiting: int) -> AsyncIterator[None]:
        """The gate is closed until so many transactions wait before it."""
        async with self._owner.transaction():
            await self._owner.execute("UPDATE purse SET coins = 1 WHERE name = 'gate'")
            yield

            async def all_wait() -> bool:
                return await self._one(WAITING) == (waiting,)

            await eventually(all_wait)

    async def coins(self) -> tuple[Any, ...]:
        """What is in the two purses."""
        return await self._one(
            "SELECT sum(coins) FILTER (WHERE name = 'one'), sum(coins) FILTER (WHERE name = 'two') FROM purse"
        )

    async def tries(self) -> tuple[Any, ...]:
        """How often a transaction was begun."""
        return await self._one("SELECT last_value FROM tries")

    async def _one(self, statement: str) -> tuple[Any, ...]:
        return await (await self._owner.execute(statement)).fetchone() or ()


@pytest.fixture
async def purses(databases: Databases) -> AsyncIterator[Purses]:
    """Two empty purses."""
    async with await psycopg.AsyncConnection.connect(databases.owner, autocommit=True) as owner:
        found = Purses(owner)
        await found.create()
        yield found


@pytest.fixture
async def database(databases: Databases) -> AsyncIterator[Database]:
    """The pool of a process."""
    async with Database(databases.app, name="state store", size=2) as found:
        yield found


@pytest.mark.failure(39)
@pytest.mark.demand("B2", "B11")
async def test_deadlocked_transactions_are_both_carried_out_once(database: Database, purses: Purses) -> None:
    async with purses.gate_closed(waiting=2):
        both = [
            asyncio.create_task(database.transaction((TRIED, {}), (COIN, {"name": a}), (GATE, {}), (COIN, {"name": b})))
            for a, b in (("one", "two"), ("two", "one"))
        ]
    assert [counts for counts, _ in await asyncio.gather(*both)] == [[1, 1, 1, 1]] * 2
    assert (await purses.coins(), await purses.tries()) == ((2, 2), (3,))


@pytest.mark.failure(39)
@pytest.mark.demand("B2", "B11")
async def test_transaction_that_can_not_be_serialised_is_carried_out_once(database: Database, purses: Purses) -> None:
    async with purses.gate_closed(waiting=1):
        late = asyncio.create_task(
            database.transaction((SNAPSHOT, {}), (TRIED, {}), (COIN, {"name": "one"}), (GATE, {}))
        )
    await late
    assert (await purses.coins(), await purses.tries()) == ((1, 0), (2,))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every limit at a tenth of what it is."""
    monkeypatch.setattr(store.database, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(store.database, "_ANSWER_S", 1.5)
    shorter = [s.replace("'10s'", "'1s'").replace("'5s'", "'500ms'") for s in store.database.SESSION]
    assert shorter[:2] != list(store.database.SESSION[:2])
    monkeypatch.setattr(store.database, "SESSION", tuple(shorter))


@pytest.mark.failure(51)
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("trouble", ["no connection is free", "a lock is held", "a statement is slow", "it is silent"])
async def test_database_that_answers_too_late_is_named_and_given_up(
    databases: Databases, purses: Purses, trouble: str
) -> None:
    where = urlsplit(databases.app)
    async with Proxy((str(where.hostname), where.port or 0)) as proxy, AsyncExitStack() as stack:
        address = databases.app.replace(f":{where.port}/", f":{proxy.port}/")
        database = await stack.enter_async_context(Database(address, name="state store", size=1))
        await database.rows("SELECT 1")
        began, statement = monotonic(), COIN
        match trouble:
            case "no connection is free":
                taken = asyncio.create_task(database.rows("SELECT pg_sleep(0.9)"))
                stack.push_async_callback(asyncio.gather, taken, return_exceptions=True)
                await asyncio.sleep(0)  # it takes the connection
            case "a lock is held":
                await stack.enter_async_context(purses.gate_closed(waiting=0))
                statement = COIN.replace("%(name)s", "'gate'")
            case "a statement is slow":
                statement = "SELECT pg_sleep(60)"
            case "it is silent":
                proxy.faults.blackhole, proxy.faults.refuse = True, True
        with pytest.raises(Unreachable, match=rf"state store at 127.0.0.1:{proxy.port}/state_\w+ does not answer"):
            await database.transaction((statement, {"name": "one"}))
        # the driver takes five seconds more to believe that nobody answers
        assert monotonic() - began < (10.0 if trouble == "it is silent" else 4.0)
        proxy.heal()


# --- migrations -----------------------------------------------------------------------------------------------


async def migrated(settings: Settings) -> tuple[int | None, str]:
    """Run the command that migrates both databases; its exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "starter.py", "migrate"),
        cwd=ROOT,
        env={**os.environ, **environment(settings)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode, out.decode()


@pytest.mark.failure(58)
async def test_two_migrations_at_once_make_one_schema(settings: Settings, templates: EmbeddedPostgres) -> None:
    names = [f"{kind}_{uuid4().hex[:10]}" for kind in ("state", "orders")]
    async with await psycopg.AsyncConnection.connect(templates.dsn(), autocommit=True) as connection:
        for name in names:
            await connection.execute(f"CREATE DATABASE {name}")
        empty = {f: SecretStr(templates.dsn(n)) for f, n in zip(ADMIN, names, strict=True)}
        done = await asyncio.gather(*(migrated(settings.model_copy(update=empty)) for _ in range(2)))
        assert [code for code, _ in done] == [0, 0], done
        for name, kind in zip(names, ("state", "orders"), strict=True):
            check_schema(templates.dsn(name), kind)  # type: ignore[arg-type]  # one of the two names
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


ADMIN = ("admin_database_url", "admin_orders_url")


@pytest.mark.failure(58)
def test_migration_by_an_older_release_is_refused_and_changes_nothing(databases: Databases) -> None:
    with psycopg.connect(databases.owner, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(Unreachable, match=r"state database can't be migrated by this release: .*9999"):
            migrate(databases.owner, "state")
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


@pytest.mark.failure(58)
async def test_schema_that_is_expanded_under_tasks_at_work_disturbs_none(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    """What the next release's first migration may do while this one still runs: add columns and indexes."""
    simulators.fault("shipping", "latency", latency_ms=700, match={"task_id": f"{task_id}*"})
    async with bench.worker():
        ids = await submitted(bench, order, task_id, 6)
        await bench.step_reached(ids[0], "ship", StepState.RUNNING)
        async with await psycopg.AsyncConnection.connect(databases.owner) as connection:
            for table in ("task", "step", "compensation", "event", "alert"):
                await connection.execute(f"ALTER TABLE {table} ADD COLUMN colour text NOT NULL DEFAULT 'red'")
                await connection.execute(f"CREATE INDEX ON {table} (colour)")
        ids += await submitted(bench, order, f"{task_id}-after", 2)
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert [(await bench.page(i)).task.failure_count for i in ids] == [0] * 8
    assert [simulators.live(i) for i in ids] == [FULL] * 8
