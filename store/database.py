"""The one place that knows the driver: a pool of connections, and how a transaction is sent and repeated.

A transaction is a list of statements sent in one pipeline, which costs one round trip. It is repeated by itself when
the connection fails or the database asks for it. Every statement here is written so that a repetition is harmless:
whoever reads zero changed rows looks at the snapshot that comes with it (a lost COMMIT acknowledgement).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from domain.faults import Unreachable

Params = Mapping[str, Any]
Rows = list[dict[str, Any]]

_PATIENCE_S = 5.0
_REPEATABLE = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)


@cache
def query(name: str) -> str:
    """Text of `store/queries/<name>.sql`."""
    return (Path(__file__).parent / "queries" / f"{name}.sql").read_text()


class Database:
    """A pool of connections to one database. Open it with `async with`."""

    def __init__(self, dsn: str, *, name: str, size: int = 8) -> None:
        self._name, self._dsn = name, dsn
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=size,
            open=False,
            timeout=_PATIENCE_S,
            kwargs={
                "row_factory": dict_row,
                "autocommit": True,
                "application_name": name,
                "connect_timeout": 5,
            },
            configure=_configure,
            check=AsyncConnectionPool.check_connection,
        )

    async def __aenter__(self) -> Database:
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @property
    def dsn(self) -> str:
        """Address of the database."""
        return self._dsn

    @property
    def place(self) -> str:
        """Where it is, without credentials: for messages."""
        parts = urlsplit(self._dsn)
        return f"{self._name} at {parts.hostname}:{parts.port or 5432}{parts.path}"

    async def transaction(
        self, *statements: tuple[str, Params], patience_s: float = _PATIENCE_S
    ) -> tuple[Sequence[int], Sequence[Rows]]:
        """Send statements as one transaction in one round trip; repeat it by itself until `patience_s` is over.

        Returns:
            Per statement, the number of rows it touched and the rows it returned.

        Raises:
            Unreachable: The database did not answer in time. What was sent last may have been committed.
        """
        give_up_at = monotonic() + patience_s
        pause = 0.05
        while True:
            try:
                return await self._send(statements)
            except _REPEATABLE as error:
                if monotonic() + pause > give_up_at:
                    raise Unreachable(f"{self.place} does not answer: {str(error).strip()}") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            pause = min(pause * 2, 1.0)

    async def rows(self, statement: str, params: Params | None = None) -> Rows:
        """Rows of one statement."""
        _, (rows,) = await self.transaction((statement, params or {}))
        return rows

    async def _send(self, statements: Sequence[tuple[str, Params]]) -> tuple[list[int], list[Rows]]:
        async with self._pool.connection() as connection:
            async with connection.pipeline(), connection.transaction():
                cursors = [await connection.execute(text, params) for text, params in statements]
            counts = [c.rowcount for c in cursors]
            return counts, [await c.fetchall() if c.description else [] for c in cursors]


async def _configure(connection: psycopg.AsyncConnection[DictRow]) -> None:
    await connection.execute("SET statement_timeout = '10s'")
    await connection.execute("SET lock_timeout = '5s'")
    await connection.execute("SET idle_in_transaction_session_timeout = '30s'")
    connection.prepare_threshold = 2
