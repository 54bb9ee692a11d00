"""Migrations of both databases: `migrate` brings one up to date.

Migrations go forward only and run under an advisory lock, so several may start at once.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command, context
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Connection, create_engine, pool, text

from domain.faults import Unreachable
from store.connection import SQLALCHEMY, connect
from store.schema import DatabaseName

_LOCK = 7_233_001


def migrate(dsn: str, database: DatabaseName) -> None:
    """Bring the schema of one database to the newest version. `dsn`: as its owner.

    Raises:
        Unreachable: Its schema is newer than this release.
    """
    try:
        command.upgrade(_config(dsn, database), "head")
    except CommandError as error:
        raise Unreachable(f"{database} database can't be migrated by this release: {error}") from error


def run_migrations() -> None:
    """Body of each `env.py`: run what Alembic's context asks for, under the advisory lock."""
    dsn = context.config.attributes["dsn"]
    engine = create_engine(SQLALCHEMY, creator=lambda: connect(dsn), poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.execute(text(f"SELECT pg_advisory_lock({_LOCK})"))
        connection.commit()
        context.configure(connection=connection, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
        connection.execute(text(f"SELECT pg_advisory_unlock({_LOCK})"))
        connection.commit()
    engine.dispose()


def run_script(connection: Connection, script: Path) -> None:
    """Run a file of SQL as it stands, inside the migration's transaction: nothing in it is a placeholder."""
    driver = connection.connection.driver_connection
    if driver is None:
        raise RuntimeError("the migration has no open connection")
    driver.cursor().execute(script.read_text())


def run_folder(connection: Connection, folder: str) -> None:
    """Run every file of `store/functions` or `store/triggers`; bodies may name what a later file or migration makes."""
    connection.execute(text("SET LOCAL check_function_bodies = off"))
    for script in sorted((Path(__file__).parent / folder).glob("*.sql")):
        run_script(connection, script)


def _config(dsn: str, database: DatabaseName) -> Config:
    config = Config()
    scripts = str(Path(__file__).parent / "migrations" / database)
    config.set_main_option("script_location", scripts.replace("%", "%%"))  # it would be a placeholder
    config.attributes["dsn"] = dsn
    return config
