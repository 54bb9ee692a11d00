"""The version of a database's schema: a process refuses to run on another than its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import psycopg

from domain.faults import Unreachable

Database = Literal["state", "orders"]
MIGRATE_COMMAND = "python starter.py migrate"


def newest_version(database: Database) -> str:
    """The version that this release needs: that of its last migration."""
    versions = (Path(__file__).parent / "migrations" / database / "versions").glob("*.py")
    return max(v.stem for v in versions).split("_", 1)[0]


def check_schema(dsn: str, database: Database) -> None:
    """Refuse to go on with a schema of another version.

    Raises:
        Unreachable: The database can't be reached, or its schema is not the one this release needs.
    """
    try:
        with psycopg.connect(dsn, connect_timeout=5) as connection:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise Unreachable(f"{database} database can't be reached: {reason}") from error
    found, wanted = row[0] if row else "none", newest_version(database)
    if found != wanted:
        raise Unreachable(
            f"{database} database has schema version {found}, this release needs {wanted}: run `{MIGRATE_COMMAND}`"
        )


def sqlalchemy_url(dsn: str) -> str:
    """A `postgresql://` address in the form that selects the psycopg driver."""
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)
