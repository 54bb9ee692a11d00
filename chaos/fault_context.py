"""What every fault has at hand: the testbed, the draws, a lock for each part, so that one thing at a time hurts it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from time import monotonic
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

from chaos.testbed import ChaosTestbed

PATIENCE_S = 8.0
"""How long a fault that waits for traffic waits for it."""


class FaultContext:
    """Shared by all kinds of fault of one run."""

    def __init__(self, testbed: ChaosTestbed, random: Random) -> None:
        self.testbed, self.random = testbed, random
        self.locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def rows(self, query: str, *params: Any) -> list[DictRow]:
        """Ask past the proxies."""
        async with await psycopg.AsyncConnection.connect(
            self.testbed.owner, row_factory=dict_row, connect_timeout=2, autocommit=True
        ) as connection:
            cursor = await connection.execute(query, params)
            return await cursor.fetchall() if cursor.description else []

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float, *, look_s: float = 0.05) -> bool:
        """Wait for a condition, but not for ever; whether it came."""
        give_up_at = monotonic() + seconds
        while not (came := await condition()) and monotonic() < give_up_at:  # noqa: ASYNC110 (another process's)
            await asyncio.sleep(look_s)
        return came

    def between(self, least: float, most: float) -> float:
        """A draw."""
        return self.random.uniform(least, most)
