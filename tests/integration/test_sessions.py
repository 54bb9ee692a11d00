"""What a role, a database or a shell has set for a session of its own changes nothing that a process does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors
from pydantic import SecretStr

from definitions import registry
from devstack.servers.postgres import EmbeddedPostgres
from domain.faults import Unreachable
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from operators.checks import all_checks
from operators.checks.finding import Check
from runtime.settings import Settings
from store.connection import connect, connect_async, is_out_of_reach, is_shared
from store.database import Database
from store.migrate import migrate
from store.reads import open_reads
from store.schema import check_schema
from testing.databases import Databases
from testing.waiting import eventually
from tests.failures.pooler import transaction_pooler
from tests.integration.store_bench import StoreBench, open_store_bench, shipped

DEFAULTS = {
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "'sql_standard'",
    "TimeZone": "'Asia/Kathmandu'",
    "client_encoding": "'LATIN1'",
    "search_path": "'nowhere'",
    "bytea_output": "'escape'",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "row_security": "off",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_deferrable": "on",
    "statement_timeout": "'400ms'",
    "lock_timeout": "'2s'",
    "transaction_timeout": "'400ms'",
    "idle_session_timeout": "'2s'",
    "idle_in_transaction_session_timeout": "'2s'",
    "synchronous_commit": "off",
    "jit": "on",
    "plan_cache_mode": "'force_custom_plan'",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
}

SEEN = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "search_path": "public",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
    "synchronous_commit": "on",
    "transaction_timeout": "0",
}


def set_for(server: psycopg.Connection[Any], target: str, values: dict[str, str]) -> None:
    """Give a role or a database defaults of its own."""
    for name, value in values.items():
        server.execute(f"ALTER {target} SET {name} = {value}")


@pytest.fixture(params=["database", "role"])
def spoilt(request: pytest.FixtureRequest, templates: EmbeddedPostgres) -> Iterator[Databases]:
    """Databases with defaults of their own, for all who connect or for each role."""
    with Databases(templates) as found, psycopg.connect(templates.dsn(), autocommit=True) as server:
        for dsn in (found.owner, found.orders_owner):
            name = dsn.rpartition("/")[2]
            roles = [f"ROLE {r} IN DATABASE {name}" for r in ("app", "sup", "postgres")]
            for target in [f"DATABASE {name}"] if request.param == "database" else roles:
                set_for(server, target, DEFAULTS)
        yield found


async def through_the_pool(dsn: str, statement: str) -> Any:
    async with Database(dsn, name="it", size=1) as database:
        (row,) = await database.rows(statement)
    return next(iter(row.values()))


async def by_itself(dsn: str, statement: str) -> Any:
    async with await connect_async(dsn) as connection:
        return (await (await connection.execute(statement)).fetchone() or [None])[0]


async def at_once(dsn: str, statement: str) -> Any:
    with connect(dsn) as connection:
        connection.rollback()  # what was set in a transaction would be gone now
        return (connection.execute(statement).fetchone() or [None])[0]


@pytest.mark.failure(52)
@pytest.mark.parametrize("way", [through_the_pool, by_itself, at_once])
async def test_every_kind_of_connection_sets_what_the_code_relies_on(
    spoilt: Databases, way: Callable[[str, str], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("PGOPTIONS", "-c search_path=nowhere"),
        ("PGDATESTYLE", "SQL,DMY"),
        ("PGTZ", "Asia/Kathmandu"),
    ):
        monkeypatch.setenv(name, value)
    names = ", ".join(f"'{n}', current_setting('{n}')" for n in SEEN)
    found = await way(spoilt.app, f"SELECT jsonb_build_object({names})")
    assert found == SEEN


@pytest.mark.failure(52)
async def test_no_default_of_a_role_or_database_disturbs_a_task(spoilt: Databases, task_id: str) -> None:
    for dsn, kind in ((spoilt.owner, "state"), (spoilt.orders_owner, "orders")):
        migrate(dsn, kind)  # type: ignore[arg-type]  # one of the two names
        check_schema(dsn, kind)  # type: ignore[arg-type]  # likewise
    async with open_store_bench(spoilt) as store, open_reads(spoilt.app) as reads:
        await store.processed(task_id)
        asked = UndoRequest(task_id=task_id, requester="cli:Zoë", reason="späť 退款")
        assert (await store.store.requests.undo(asked)).verdict == "accepted"
        page = await reads.page(task_id)
        assert page.task.state is TaskState.COMPENSATING
        assert page.events[-1].actor == "cli:Zoë"
        assert page.events[-1].detail["reason"] == "späť 退款"
        assert page.events[-1].at.tzinfo is not None
        assert page.events[-1].at.utcoffset() == UTC.utcoffset(None)
        await store.begun(f"{task_id}-2")
        store.expire(f"{task_id}-2")
        found = await store.supervision.expired(window=timedelta(days=1), page=9, after=(None, ""))
        assert [t.task_id for t in found] == [f"{task_id}-2"]


@pytest.mark.failure(52)
def test_role_for_which_the_guards_are_off_is_refused_by_name(templates: EmbeddedPostgres) -> None:
    with Databases(templates) as found, psycopg.connect(templates.dsn(), autocommit=True) as server:
        name = found.app.rpartition("/")[2]
        set_for(server, f"ROLE app IN DATABASE {name}", {"session_replication_role": "replica"})
        with pytest.raises(Unreachable, match=r"guards of its tables are off for app: ALTER ROLE app RESET"):
            check_schema(found.app, "state")


# --- a database that takes no writes --------------------------------------------------------------------------


@contextmanager
def read_only(server: EmbeddedPostgres) -> Iterator[None]:
    """A server that takes no writes for a while."""
    with psycopg.connect(server.dsn(), autocommit=True) as owner:
        try:
            owner.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            owner.execute("SELECT pg_reload_conf()")
            yield
        finally:
            owner.execute("SET default_transaction_read_only = off")
            owner.execute("ALTER SYSTEM RESET default_transaction_read_only")
            owner.execute("SELECT pg_reload_conf()")


@pytest.mark.failure(56)
async def test_store_that_turns_read_only_is_out_of_reach_by_name(
    store: StoreBench, monkeypatch: pytest.MonkeyPatch, templates: EmbeddedPostgres, task_id: str
) -> None:
    """As a managed server does it when its disk is full: for the whole server, and for sessions that are there."""
    monkeypatch.setattr("store.database._PATIENCE_S", 0.2)
    await store.submitted(task_id)
    with read_only(templates):
        await eventually(lambda: takes_no_writes(store))
        with pytest.raises(Unreachable, match=r"state store at \S+ is read-only: "):
            await store.store.claims.claim("worker", [(d.name, d.version) for d in registry()], 1, [task_id])
    monkeypatch.undo()
    assert (await store.claim(task_id)).task_id == task_id


async def takes_no_writes(store: StoreBench) -> bool:
    """Whether the reload has reached the sessions of the pool."""
    try:
        await store.admission.publish(shipped("order"))
    except Unreachable:
        return True
    return False


# --- every error ----------------------------------------------------------------------------------------------

WAIT = {"08", "28", "40", "53", "55", "57", "58", "F0", "XX"}
WAIT_BY_CODE = {"25006", "25P03", "25P04", "3D000"}


@pytest.mark.failure(56)
def test_every_database_error_is_waited_out_or_a_mistake() -> None:
    codes = {c for c in errors._sqlcodes if (len(c) == 5 and c[0].isdigit()) or c[:2] in WAIT}
    found = {c for c in codes if is_out_of_reach(errors.lookup(c)("said so"))}
    assert found == {c for c in codes if c[:2] in WAIT or c in WAIT_BY_CODE}
    assert is_out_of_reach(psycopg.OperationalError("the connection is lost"))
    assert not is_out_of_reach(psycopg.DataError("PostgreSQL text fields cannot contain NUL"))


# --- poolers --------------------------------------------------------------------------------------------------


@pytest.mark.failure(53)
async def test_transaction_pooler_is_told_from_the_server(store: StoreBench) -> None:
    assert not await is_shared(store.databases.app)
    async with transaction_pooler(store.databases.app) as pooled:
        assert await is_shared(pooled)


async def of_the_state_database(dsn: str) -> Check:
    """What `doctor` finds of the state store at that address."""
    return await anext(all_checks(Settings(database_url=SecretStr(dsn))))


@pytest.mark.failure(53)
@pytest.mark.demand("H5")
async def test_doctor_names_pooler_owners_login_and_read_only_server(
    store: StoreBench, templates: EmbeddedPostgres
) -> None:
    databases = store.databases
    assert (await of_the_state_database(databases.app)).is_well
    async with transaction_pooler(databases.app) as pooled:
        assert "a pooler that lends sessions by transaction" in (await of_the_state_database(pooled)).found
    assert "rights of the owner" in (await of_the_state_database(databases.owner)).found
    assert "rights of the supervisor" in (await of_the_state_database(databases.supervisor)).found
    with read_only(templates):
        await eventually(lambda: takes_no_writes(store))
        assert (await of_the_state_database(databases.app)).found == "is read-only"
