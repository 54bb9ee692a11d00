"""Waiting for what another process does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE_S = 100.0
"""For so long a test waits for what must come: a busy machine makes it slow, and never wrong."""


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, looking again every few milliseconds.

    Raises:
        TimeoutError: It does not hold in time.
    """
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 (the condition is another process's)
            await asyncio.sleep(0.02)  # between two looks; the condition, not the time, decides
