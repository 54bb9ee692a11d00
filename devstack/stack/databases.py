"""The databases of the embedded stack: made, migrated, and opened to two login roles as narrow as in production."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from devstack.processes.records import write_atomically
from devstack.servers.postgres import EmbeddedPostgres
from store.connection import connect

STATE, ORDERS = "scheduler", "orders"
APP, SUPERVISOR = "sas_app", "sas_supervisor"

_GROUPS: Mapping[str, str] = {APP: "scheduler_app", SUPERVISOR: "scheduler_supervisor"}
_CONNECT: Mapping[str, tuple[str, ...]] = {STATE: (APP, SUPERVISOR), ORDERS: (APP,)}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The secrets of one state folder, made at random once and kept in a file that only we can read."""

    app_password: str
    supervisor_password: str
    callback_secret: str

    @classmethod
    def of(cls, state_dir: Path) -> Credentials:
        """Read them, or make them."""
        path = state_dir / "credentials.json"
        if path.exists():
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        made = cls(secrets.token_hex(24), secrets.token_hex(24), secrets.token_hex(32))
        write_atomically(path, json.dumps(asdict(made), indent=2) + "\n")
        return made


def prepare_databases(server: EmbeddedPostgres, credentials: Credentials) -> str:
    """Make both databases and both login roles if they are missing, and migrate. Returns the server's version.

    Repeating it is safe, and gives the roles the passwords that are on file.
    """
    from store.migrate import migrate  # noqa: PLC0415 (Alembic takes half a second, and only this needs it)

    with connect(server.dsn(), autocommit=True) as connection:
        for name in (STATE, ORDERS):
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        migrate(server.dsn(STATE), "state")
        migrate(server.dsn(ORDERS), "orders")
        _let_in(connection, APP, credentials.app_password)
        _let_in(connection, SUPERVISOR, credentials.supervisor_password)
        for database, roles in _CONNECT.items():
            _admit_only(connection, database, roles)
        row = connection.execute("SHOW server_version").fetchone()
    return str(row[0]).split()[0] if row else ""


def _let_in(connection: psycopg.Connection, role: str, password: str) -> None:
    name = sql.Identifier(role)
    if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
        connection.execute(sql.SQL("CREATE ROLE {}").format(name))
    connection.execute(sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(password)))
    connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(_GROUPS[role]), name))


def _admit_only(connection: psycopg.Connection, database: str, roles: tuple[str, ...]) -> None:
    name = sql.Identifier(database)
    connection.execute(sql.SQL("REVOKE CONNECT, TEMPORARY ON DATABASE {} FROM PUBLIC").format(name))
    for role in roles:
        connection.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name, sql.Identifier(_GROUPS[role])))
