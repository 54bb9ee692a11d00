"""What each database role may not do: the Supervisor can only ask, and nobody rewrites what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testing.databases import Databases
from tests.integration.store_bench import StoreBench


@pytest.fixture(scope="module")
async def store(opened: StoreBench) -> StoreBench:
    """A store with one task, `t`, whose first step is begun."""
    await opened.begun("t")
    return opened


def orders_as_supervisor(databases: Databases) -> str:
    """The orders database, with the Supervisor's credentials."""
    orders, supervisor = urlsplit(databases.orders), urlsplit(databases.supervisor)
    return urlunsplit(supervisor._replace(path=orders.path))


@pytest.fixture
def refused(store: StoreBench) -> Iterator[None]:
    """Nothing that the test tries may have changed anything."""
    before = store.contents("t")
    yield
    assert store.contents("t") == before


def attempt(dsn: str, statement: str) -> None:
    """Try a statement."""
    with closing(psycopg.connect(dsn)) as connection:
        connection.execute(statement)
        connection.commit()


INSERT_TASK = (
    "INSERT INTO task (task_id, definition, version, state, record_digest, submitter, data_class, last_event)"
    " VALUES ('u', 'order', 1, 'Pending', 'd', 's', 'c', 1)"
)


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "H5")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE step SET state = 'Completed'",
        "UPDATE step SET result = '{}'",
        "UPDATE step SET budget_left = 9",
        "UPDATE step SET budget = 99, budget_left = 96 WHERE name = 'stock'",
        "UPDATE step SET undo_budget = 29, undo_budget_left = 29",
        "UPDATE step SET reservation = 'mine', reserved = 3",
        "UPDATE step SET complete_by = now() + interval '1 hour'",
        "UPDATE step SET key_generation = 1",
        "INSERT INTO step (task_id, name, position, budget, budget_left, undo_budget, undo_budget_left)"
        " VALUES ('t', 'x', 9, 1, 1, 1, 1)",
        "DELETE FROM step",
        "UPDATE compensation SET state = 'Undone'",
        "INSERT INTO compensation (task_id, seq, step, action, request) VALUES ('t', 9, 'x', 'a.b', '{}')",
        "DELETE FROM compensation",
        INSERT_TASK,
        "DELETE FROM task",
        "UPDATE task SET epoch = 2",
        "UPDATE task SET worker = 'me'",
        "UPDATE task SET record_digest = 'x'",
        "UPDATE event SET actor = 'somebody'",
        "DELETE FROM event",
        "INSERT INTO inbox (response_id, key, body) VALUES ('r', 'k', '{}')",
        "SELECT * FROM inbox",
        "SELECT * FROM dead_letter",
        "UPDATE definition SET policies = '{}'",
        "UPDATE alert SET message = 'all is well'",
        "DELETE FROM alert",
    ],
)
@pytest.mark.usefixtures("refused")
def test_supervisor_can_only_ask(store: StoreBench, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(store.databases.supervisor, statement)


@pytest.mark.demand("D3", "H5")
@pytest.mark.parametrize(
    "statement",
    ["SELECT * FROM business_record", "UPDATE business_record SET outcome = 'x'", "DELETE FROM business_record"],
)
def test_supervisor_can_not_read_business_records(store: StoreBench, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(orders_as_supervisor(store.databases), statement)


@pytest.mark.demand("C12", "G4", "H5")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET actor = 'somebody'",
        "UPDATE event SET detail = '{}'",
        "TRUNCATE event",
        "ALTER TABLE event DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "DROP TRIGGER guard_event ON event",
        "UPDATE service_event SET reason = 'none'",
        "DELETE FROM service_event",
        "TRUNCATE service_event",
    ],
)
@pytest.mark.usefixtures("refused")
def test_application_can_not_change_events_or_switch_off_their_guards(store: StoreBench, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(store.databases.app, statement)


@pytest.mark.demand("C12", "G4")
@pytest.mark.usefixtures("refused")
def test_application_can_not_remove_events_of_a_task_that_is_there(store: StoreBench) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        attempt(store.databases.app, "DELETE FROM event")


@pytest.mark.failure(108)
@pytest.mark.demand("H5")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sweep SET finished_at = now()",
        "INSERT INTO sweep DEFAULT VALUES",
        "DELETE FROM compensation",
        "DELETE FROM alert",
        "UPDATE dead_letter SET reason = 'none'",
        "DELETE FROM definition",
    ],
)
@pytest.mark.usefixtures("refused")
def test_application_can_not_do_what_no_statement_of_it_does(store: StoreBench, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(store.databases.app, statement)


@pytest.mark.demand("H5")
def test_application_can_not_remove_business_records(store: StoreBench) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(store.databases.orders, "DELETE FROM business_record")


@pytest.mark.demand("H5")
@pytest.mark.parametrize("who", ["app", "supervisor", "orders"])
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE mine (id int)",
        "CREATE SCHEMA mine",
        "ALTER TABLE alembic_version ADD COLUMN x int",
        "UPDATE alembic_version SET version_num = '9999'",
        "CREATE ROLE mine",
    ],
)
def test_no_process_can_change_the_schema(store: StoreBench, who: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attempt(getattr(store.databases, who), statement)
