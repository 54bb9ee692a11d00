"""Schema of both databases: `migrate` brings one up to date, `check_schema` refuses a process that needs another.

Migrations go forward only and run under an advisory lock, so several may start at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from alembic import command, context
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine, pool, text

from domain.faults import Unreachable

Database = Literal["state", "orders"]
_LOCK = 7_233_001
MIGRATE_COMMAND = "python starter.py migrate"


def sqlalchemy_url(dsn: str) -> str:
    """A `postgresql://` address in the form that selects the psycopg driver."""
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


def migrate(dsn: str, database: Database) -> None:
    """Bring the schema of one database to the newest version. `dsn`: as its owner."""
    command.upgrade(_config(dsn, database), "head")


def check_schema(dsn: str, database: Database) -> None:
    """Refuse to go on with a schema of another version.

    Raises:
        Unreachable: The database can't be reached, or its schema is not the one this release needs.
    """
    wanted = ScriptDirectory.from_config(_config(dsn, database)).get_current_head()
    engine = create_engine(sqlalchemy_url(dsn), poolclass=pool.NullPool)
    try:
        with engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise Unreachable(f"{database} database can't be reached: {reason}") from error
    finally:
        engine.dispose()
    if found != wanted:
        raise Unreachable(
            f"{database} database has schema version {found or 'none'}, this release needs {wanted}: "
            f"run `{MIGRATE_COMMAND}`"
        )


def run_migrations(metadata: MetaData) -> None:
    """Body of each `env.py`: run what Alembic's context asks for, under the advisory lock."""
    engine = create_engine(context.config.get_main_option("sqlalchemy.url") or "", poolclass=pool.NullPool)
    with engine.connect() as connection:
        connection.execute(text(f"SELECT pg_advisory_lock({_LOCK})"))
        connection.commit()
        context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
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


def _config(dsn: str, database: Database) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations" / database))
    config.set_main_option("sqlalchemy.url", sqlalchemy_url(dsn).replace("%", "%%"))
    return config
