"""The version of a database's schema: a process refuses to run on another than its own."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import psycopg

from domain.faults import Unreachable
from store.connection import connect, place_of

log = logging.getLogger(__name__)  # not structlog, which takes a while to load: every command comes by here

DatabaseName = Literal["state", "orders"]
_TABLE: dict[DatabaseName, str] = {"state": "task", "orders": "business_record"}
"""A table by which the two are told apart."""

MIGRATE_COMMAND = "python starter.py migrate"


def newest_version(database: DatabaseName) -> str:
    """The version that this release needs: that of its last migration."""
    versions = (Path(__file__).parent / "migrations" / database / "versions").glob("*.py")
    return max(v.stem for v in versions).split("_", 1)[0]


def check_schema(dsn: str, database: DatabaseName, *, may_be_away: bool = False) -> None:
    """Refuse to go on with a schema of another version.

    Raises:
        Unreachable: The database can't be reached, unless it `may_be_away`, or its schema is not the one that this
            release needs.
    """
    try:
        with connect(dsn) as connection:
            row = connection.execute(
                "SELECT version_num, pg_is_in_recovery(), to_regclass(%s) FROM alembic_version", (_TABLE[database],)
            ).fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    except psycopg.Error as error:
        reason = f"{database} database can't be reached: {str(error).strip().splitlines()[0]}"
        if not may_be_away:
            raise Unreachable(reason) from error
        log.warning(reason)
        return
    if row and row[1]:
        raise Unreachable(f"{database} database at {place_of(dsn)} is a read-only replica: decisions need the primary")
    if row and row[2] is None:
        raise Unreachable(f"{place_of(dsn)} is not the {database} database: are the two addresses swapped?")
    found, wanted = row[0] if row else "none", newest_version(database)
    if found != wanted:
        raise Unreachable(
            f"{database} database has schema version {found}, this release needs {wanted}: run `{MIGRATE_COMMAND}`"
        )
