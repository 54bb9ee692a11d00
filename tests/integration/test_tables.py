"""The tables: the migrations make exactly what the code describes, and each store has its own."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from psycopg import Connection
from sqlalchemy import MetaData, create_engine

from store.connection import SQLALCHEMY, connect
from store.rows import Row
from store.tables import ORDERS, STATE_STORE
from testing.databases import Databases


@pytest.mark.parametrize("which", ["state", "orders"])
def test_migrations_make_the_tables_that_the_code_has(databases: Databases, which: str) -> None:
    dsn, metadata = {
        "state": (databases.owner, STATE_STORE),
        "orders": (databases.orders_owner, ORDERS),
    }[which]
    options = {"compare_type": True, "compare_server_default": True}
    engine = create_engine(SQLALCHEMY, creator=lambda: connect(dsn))
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        # what Alembic does not compare: columns in order, checks, and what partial indexes are for
        with psycopg.connect(dsn) as migrated:
            expected = catalogue(migrated)
        with engine.begin() as connection:
            metadata.drop_all(connection)
            metadata.create_all(connection)
        with psycopg.connect(dsn) as made:
            assert catalogue(made) == expected
    finally:
        engine.dispose()


@pytest.mark.failure(105)
def test_rows_that_are_read_hold_columns_of_their_tables() -> None:
    for kind in Row.__subclasses__():
        assert set(kind.model_fields) <= set(STATE_STORE.tables[kind.table].columns.keys()), kind.table


def catalogue(connection: Connection[Any]) -> list[list[tuple[Any, ...]]]:
    """Columns, constraints and indexes as PostgreSQL describes them, without Alembic's own table."""
    statements = (
        "SELECT table_name, column_name, data_type, is_nullable, column_default, is_identity"
        " FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'",
        "SELECT relname, conname, pg_get_constraintdef(c.oid) FROM pg_constraint AS c"
        " INNER JOIN pg_class AS t ON t.oid = c.conrelid WHERE t.relnamespace = 'public'::regnamespace"
        " AND relname <> 'alembic_version' AND contype IN ('c', 'p', 'u', 'f')",
        "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
    )
    return [sorted(connection.execute(s).fetchall(), key=str) for s in statements]


def test_both_stores_have_tables_of_their_own() -> None:
    def names(metadata: MetaData) -> set[str]:
        return set(metadata.tables)

    assert names(STATE_STORE) & names(ORDERS) == set()
