"""How a connection to either database is made: one way, for whoever opens one.

A role, a database, or a shell may have defaults of its own for all that a session can set. So each session sets what
the code relies on, and checks what it can't set: no such default changes what a process does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from domain.faults import Unreachable
from domain.text import place
from store.queries import query

TRANSPORT: dict[str, Any] = {
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""How a connection speaks, and how it notices that its other end is gone."""

SQLALCHEMY = "postgresql+psycopg://"
"""Address of an engine whose connections come from `connect`."""

_NO_TIMEOUT = "SET statement_timeout = 0"
_OUT_OF_REACH = (
    "08",  # the connection fails
    "25006",  # read-only: a replica, a full disk, a fence
    "25P03",  # idle in a transaction for too long
    "25P04",  # in a transaction for too long
    "28",  # this role, password or host is not let in
    "3D000",  # there is no such database: it is being restored
    "40",  # serialization failure, deadlock
    "53",  # no disk, no memory, too many connections
    "55",  # a lock that can't be had in time; an object in use, or not in the state for it
    "57",  # cancelled, shut down, crashed, starting, dropped
    "58",  # the operating system or a file fails the server
    "F0",  # its configuration is being written
    "XX",  # the server itself fails: damaged data, a bug of its own
)
"""SQLSTATEs, and classes of them, of a database that can't be used now. All others are about the statement, its values
or the rights of the role: waiting changes nothing."""
_OF_ROWS = (
    "22",  # a value is not what it should be
    "23",  # a constraint, a guard
    "40",  # serialization failure, deadlock
    "55P03",  # a lock that can't be had in time
    "57014",  # takes too long
    "P0",  # a function raises
)
"""SQLSTATEs, and classes of them, that say something of the rows which a statement touches: with others it may pass."""


def connect(dsn: str, **options: Any) -> Connection[Any]:
    """A connection that is set up. `options`: more of psycopg's own; raises what psycopg raises."""
    connection = Connection.connect(dsn, **TRANSPORT | options | {"autocommit": True})
    try:
        connection.execute(_NO_TIMEOUT)
        connection.execute(query("set_up_session"))
        _check(connection.cursor(row_factory=tuple_row).execute(query("unguarded")).fetchone())
        connection.autocommit = options.get("autocommit", False)
    except BaseException:
        connection.close()
        raise
    return connection


async def connect_async(dsn: str, **options: Any) -> AsyncConnection[Any]:
    """As `connect`, without blocking, and in autocommit."""
    connection = await AsyncConnection.connect(dsn, **TRANSPORT | options | {"autocommit": True})
    try:
        await set_up(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def set_up(connection: AsyncConnection[Any]) -> None:
    """Let the session of a new connection, which is in autocommit, be as the code relies on."""
    await connection.execute(_NO_TIMEOUT)  # by itself: a short one of the role's would cut the rest
    await connection.execute(query("set_up_session"))
    cursor = await connection.cursor(row_factory=tuple_row).execute(query("unguarded"))
    _check(await cursor.fetchone())


async def is_shared(dsn: str) -> bool:
    """Whether two connections, open side by side, may have one session between them: a pooler lends it by transaction.

    What a session sets, prepares or listens to is then lost, or another's.
    """
    async with await connect_async(dsn) as one, await connect_async(dsn) as other:
        before = await _session_of(one)
        async with other.transaction():
            return before == await _session_of(other) or before != await _session_of(one)


def is_out_of_reach(error: BaseException) -> bool:
    """Whether an error says that the database can't be used now, and waiting may help."""
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return error.sqlstate.startswith(_OUT_OF_REACH)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, TimeoutError))


def is_of_rows(error: BaseException) -> bool:
    """Whether an error tells of some rows of a statement that has many, and not of the database or the statement."""
    cause = error.__cause__ if isinstance(error, Unreachable) else error
    return isinstance(cause, psycopg.Error) and (cause.sqlstate or "").startswith(_OF_ROWS)


def unreachable(place: str, error: BaseException) -> Unreachable:
    """What is said of a database that is out of reach, by its own words."""
    read_only = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
    words = str(error).strip() or type(error).__name__
    return Unreachable(f"{place} {'is read-only' if read_only else 'does not answer'}: {words}")


@contextmanager
def reaching(place: str) -> Iterator[None]:
    """Whatever says that the database is out of reach is raised as `Unreachable`."""
    try:
        yield
    except Exception as error:
        if is_out_of_reach(error):
            raise unreachable(place, error) from error
        raise


def place_of(dsn: str) -> str:
    """Where an address leads, without credentials: `host:port/database`, or several hosts."""
    parts = conninfo_to_dict(dsn)
    hosts = str(parts.get("host") or "localhost").split(",")
    ports = [port or "5432" for port in str(parts.get("port") or "").split(",")]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return f"{','.join(map(place, hosts, ports))}/{parts.get('dbname', '')}"


def _check(unguarded: tuple[str] | None) -> None:
    if unguarded is not None:
        raise psycopg.OperationalError(unguarded[0])


async def _session_of(connection: AsyncConnection[Any]) -> int:
    row = await (await connection.execute("SELECT pg_backend_pid()")).fetchone()
    return int(row[0]) if row else 0
