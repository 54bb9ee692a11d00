"""The one place that knows the driver: a pool of connections, and how a transaction is sent and repeated.

A transaction is a list of statements sent in one pipeline, which costs one round trip. It is repeated by itself when
the connection fails or the database asks for it. Every statement here is written so that a repetition is harmless:
whoever reads zero changed rows looks at the snapshot that comes with it (a lost COMMIT acknowledgement).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from domain.redaction import redact
from store.connection import TRANSPORT, connect_async, is_out_of_reach, place_of, set_up, unreachable
from store.queries import query

_WORDS = frozenset({"cause", "error", "message"})
"""Parameters that hold somebody's words, which are shown later: of exceptions, of services, of an alert."""

Params = Mapping[str, Any]
Rows = list[dict[str, Any]]
BeforeCommit = Callable[[Sequence[int]], Awaitable[None]]
"""Takes the number of rows that each statement has touched."""

_PATIENCE_S = 5.0
_ANSWER_S = 15.0
_ASK_S = 2.0


class Database:
    """A pool of connections to one database. Open it with `async with`."""

    def __init__(self, dsn: str, *, name: str, size: int = 8) -> None:
        self._name, self._dsn = name, dsn
        self._timeline, self._refusal = 0, ""
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[DictRow]] = AsyncConnectionPool(
            dsn,
            min_size=1,
            max_size=size,
            open=False,
            timeout=_PATIENCE_S,
            reconnect_timeout=_PATIENCE_S,  # after an outage the next request connects at once, not in a minute
            kwargs=TRANSPORT
            | {
                "row_factory": dict_row,
                "autocommit": True,
                "application_name": name,
            },
            configure=self._configure,
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
        return f"{self._name} at {place_of(self._dsn)}"

    async def transaction(
        self,
        *statements: tuple[str, Params],
        before_commit: BeforeCommit | None = None,
        once: bool = False,
    ) -> tuple[Sequence[int], Sequence[Rows]]:
        """Send statements as one transaction in one round trip; repeat it by itself for five seconds.

        Args:
            statements: Text and parameters of each.
            before_commit: Awaited when the statements are done and their locks held, each time that they are sent; what
                it raises undoes them.
            once: Whether it is sent once, and not repeated.

        Returns:
            Per statement, the number of rows it touched and the rows it returned.

        Raises:
            Unreachable: The database did not answer in time. What was sent last may have been committed.
        """
        statements = tuple((text, _shown(params)) for text, params in statements)
        give_up_at = monotonic() + (0.0 if once else _PATIENCE_S)
        pause = 0.05
        while True:
            try:
                return await self._send(statements, before_commit)
            except Exception as error:
                if not is_out_of_reach(error):
                    raise
                if monotonic() + pause > give_up_at:
                    raise unreachable(self.place, await self._cause(error)) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter, not a secret)
            pause = min(pause * 2, 1.0)

    async def rows(self, statement: str, params: Params | None = None) -> Rows:
        """Rows of one statement."""
        _, (rows,) = await self.transaction((statement, params or {}))
        return rows

    async def _configure(self, connection: psycopg.AsyncConnection[DictRow]) -> None:
        """Set a connection up; one to a server that must not decide anything is refused (split brain).

        The first to a newly promoted server has those to the old one replaced, now or when their transaction ends.
        """
        await set_up(connection)
        await connection.execute("; ".join(SESSION))
        connection.prepare_threshold = 2
        cursor = await connection.execute(query("timeline"))
        (row,) = await cursor.fetchall()
        self._refusal = self._refuses(row["timeline"])
        if self._refusal:
            await connection.close()
            raise psycopg.OperationalError(self._refusal)
        known, self._timeline = self._timeline, row["timeline"]
        if 0 < known < self._timeline:
            await self._pool.drain()

    async def _cause(self, error: Exception) -> Exception:
        """Why a connection can't be had, which the pool that waited for one doesn't know."""
        if self._refusal or not isinstance(error, PoolTimeout):
            return psycopg.OperationalError(self._refusal) if self._refusal else error
        try:
            async with asyncio.timeout(_ASK_S):
                await (await connect_async(self._dsn)).close()
        except Exception as found:
            return found if is_out_of_reach(found) else error
        return error

    def _refuses(self, timeline: int | None) -> str:
        """Why a server is not to be used; empty if it may be. A promotion raises the timeline above the old one."""
        if timeline is None:
            return "it is a read-only replica"
        if timeline < self._timeline:
            return f"it is an old primary (timeline {timeline}, this process has seen {self._timeline}): shut it down"
        return ""

    async def _send(
        self, statements: Sequence[tuple[str, Params]], before_commit: BeforeCommit | None
    ) -> tuple[list[int], list[Rows]]:
        async with asyncio.timeout(_ANSWER_S), self._pool.connection() as connection:
            async with connection.pipeline() as pipeline:
                # BEGIN and COMMIT as statements: everything is sent at once, and a COMMIT that fails says so.
                await connection.execute("BEGIN")
                cursors = [await connection.execute(text, params) for text, params in statements]
                if before_commit is not None:
                    await pipeline.sync()
                    await before_commit([c.rowcount for c in cursors])
                await connection.execute("COMMIT")
            counts = [c.rowcount for c in cursors]
            return counts, [await c.fetchall() if c.description else [] for c in cursors]


def _shown(params: Params) -> Params:
    """The parameters, without anything secret in what is kept to be shown."""
    return {k: redact(v) if k in _WORDS and isinstance(v, str) else v for k, v in params.items()}


SESSION = (
    "SET statement_timeout = '10s'",
    "SET lock_timeout = '5s'",
    "SET idle_in_transaction_session_timeout = '30s'",
    "SET enable_seqscan = off",
    "SET enable_bitmapscan = off",
)
"""What a connection of the pool has besides. Each statement has its index and a limit that the planner can't see, so by
statistics alone it would now and then read and sort a whole backlog to return the first few rows of it."""
