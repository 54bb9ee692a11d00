"""The tables: what a program reads of them, and which values it knows, are as the migrations have them."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from types import UnionType
from typing import Any, get_args, get_origin

import psycopg
import pytest

from domain.ids import TASK_ID
from domain.states import EventKind, ServiceEventKind, StepState, TaskState, UndoState
from store import tables
from store.rows import Row
from testing.databases import Databases

TEXT = {"text", "character varying"}
TYPES = {
    str: TEXT,
    int: {"integer", "bigint"},
    float: {"double precision"},
    bool: {"boolean"},
    datetime: {"timestamp with time zone"},
    dict: {"jsonb"},
    list: {"ARRAY"},
}
ORDERS = "business_record"
KNOWN = {
    "task_state_is_known": TaskState,
    "step_state_is_known": StepState,
    "undo_state_is_known": UndoState,
    "event_kind_is_known": EventKind,
    "service_event_kind_is_known": ServiceEventKind,
}


@pytest.mark.parametrize("row", Row.__subclasses__(), ids=lambda row: row.__name__)
def test_row_has_columns_of_its_table_by_their_types(databases: Databases, row: type[Row]) -> None:
    columns = {c[0]: c[1:] for c in asked(dsn_of(databases, row), COLUMNS, row.table)}
    for name, field in row.model_fields.items():
        kind, is_nullable = columns[name]
        held, optional = held_by(field.annotation)
        assert kind in TYPES.get(held, TEXT), name
        assert is_nullable == ("YES" if optional else "NO"), name


@pytest.mark.parametrize("row", Row.__subclasses__(), ids=lambda row: row.__name__)
def test_table_class_has_the_columns_and_the_key_of_its_table(databases: Databases, row: type[Row]) -> None:
    table = getattr(tables, row.__name__).__table__
    assert table.name == row.table
    assert table.columns.keys() == list(row.model_fields)
    assert [c.name for c in table.primary_key] == [c for (c,) in asked(dsn_of(databases, row), KEY, row.table)]


@pytest.mark.parametrize("rule", KNOWN)
def test_database_knows_the_values_that_the_code_knows(databases: Databases, rule: str) -> None:
    values: type[StrEnum] = KNOWN[rule]
    assert set(re.findall(r"'(\w+)'", definition_of(databases, rule))) == set(values)


def test_database_knows_a_task_id_as_the_code_does(databases: Databases) -> None:
    assert f"'^{TASK_ID.pattern}$'" in definition_of(databases, "task_id_is_well_formed")


def test_every_instant_is_finite(databases: Databases) -> None:
    for dsn in (databases.owner, databases.orders_owner):
        for table, column in asked(dsn, INSTANTS):
            (rule,) = asked(dsn, RULE, "instants_are_finite", table)
            assert re.search(rf"\({column} <= '9999-12-31", rule[0]), f"{table}.{column}"


COLUMNS = "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = %s"
KEY = (
    "SELECT a.attname FROM pg_index AS i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (number, place)"
    " INNER JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number"
    " WHERE i.indisprimary AND i.indrelid = %s::regclass ORDER BY k.place"
)
INSTANTS = (
    "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = 'public' AND data_type = 'timestamp with time zone'"
)
RULE = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s AND conrelid = %s::regclass"


def definition_of(databases: Databases, rule: str) -> str:
    """A constraint of the state store, as PostgreSQL describes it."""
    found = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = %s"
    return str(asked(databases.owner, found, rule)[0][0])


def dsn_of(databases: Databases, row: type[Row]) -> str:
    """The database that has the table."""
    return databases.orders_owner if row.table == ORDERS else databases.owner


def asked(dsn: str, statement: str, *params: str) -> list[tuple[Any, ...]]:
    """Rows of a statement."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement, params).fetchall()


def held_by(annotation: Any) -> tuple[Any, bool]:
    """What a field holds, and whether it may hold nothing."""
    optional = get_origin(annotation) is UnionType
    held = get_args(annotation)[0] if optional else annotation
    return get_origin(held) or held, optional
