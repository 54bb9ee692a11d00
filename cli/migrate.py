"""`migrate`: the schemas of both databases. Apart from other commands, as Alembic takes a while to load."""

from __future__ import annotations

from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import DBAPIError

from cli.app import ExitCode, Output
from cli.environment import find_settings
from cli.output import Format, print_json, print_line
from domain.faults import Unreachable
from runtime.settings import Settings, address
from store.migrate import migrate as upgrade
from store.schema import DatabaseName, check_schema


def migrate(output: Output = Format.TEXT) -> ExitCode:
    """Bring the schema of both databases to the newest version, as their owner."""
    settings = find_settings()
    _migrate(settings, "state", "admin_database_url")
    _migrate(settings, "orders", "admin_orders_url")
    if output is Format.JSON:
        print_json({"migrated": ["state", "orders"]})
    else:
        print_line("state and orders database: at the newest schema version")
    return ExitCode.OK


def _migrate(settings: Settings, database: DatabaseName, setting: str) -> None:
    dsn = address(settings, setting)
    try:
        upgrade(dsn, database)
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0]
        if isinstance(error.orig, InsufficientPrivilege):
            raise PermissionError(f"SAS_{setting.upper()} is not the owner's address: {reason}") from error
        raise Unreachable(f"{database} database can't be migrated (SAS_{setting.upper()}): {reason}") from error
    check_schema(dsn, database)
