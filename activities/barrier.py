"""A barrier in an Agent's own PostgreSQL database, in the transaction that does the work.

It keeps a repetition from doing the work twice, an original out that comes after its undo, and an attempt out that a
later one has overtaken. So a service that is a database keeps every part of the contract by itself:

    async with call.once(), await psycopg.AsyncConnection.connect(call.service.credentials["database_url"]) as database:
        return Moved.model_validate(await once(database, call, work))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from activities.agent import Found
from activities.call import Call
from domain.faults import OvertakenFault, PermanentFault
from domain.messages import Json

TABLES = """
CREATE TABLE IF NOT EXISTS sas_fence (task_id text PRIMARY KEY, epoch int NOT NULL);
CREATE TABLE IF NOT EXISTS sas_barrier (
    key text PRIMARY KEY,
    result jsonb,
    undone boolean NOT NULL DEFAULT false,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
"""The tables of the barrier, beside the Agent's own. Rows may go once `remembers` and `undoes_within` have passed."""

_FENCE = """
INSERT INTO sas_fence AS f (task_id, epoch) VALUES (%(task_id)s, %(epoch)s)
ON CONFLICT (task_id) DO UPDATE SET epoch = excluded.epoch WHERE f.epoch <= excluded.epoch
RETURNING epoch
"""
_FIND = "SELECT result, undone FROM sas_barrier WHERE key = %(key)s"
_DONE = "INSERT INTO sas_barrier (key, result) VALUES (%(key)s, %(result)s)"
_UNDONE = """
INSERT INTO sas_barrier (key, undone) VALUES (%(key)s, true) ON CONFLICT (key) DO UPDATE SET undone = true
"""


async def once(database: psycopg.AsyncConnection[Any], call: Call, work: Callable[[], Awaitable[Json]]) -> Json:
    """Do the work of a step once, in one transaction with the barrier; a repetition gets the first result.

    Raises:
        OvertakenFault: A later attempt was here. PermanentFault: It was undone, perhaps before it came.
    """
    async with database.transaction():
        await _pass_fence(database, call)
        if (before := await _row(database, _FIND, key=call.key)) is None:
            result = await work()
            await database.execute(_DONE, {"key": call.key, "result": Jsonb(result)})
            return result
    if before["undone"]:
        raise PermanentFault("undone", f"{call.key} was undone")
    return dict(before["result"])


async def undo_once(
    database: psycopg.AsyncConnection[Any], call: Call, work: Callable[[Json], Awaitable[None]]
) -> None:
    """Undo the work of a step, which takes its result, once for each key that did it; the others get a tombstone.

    Raises:
        OvertakenFault: A later attempt was here.
    """
    async with database.transaction():
        await _pass_fence(database, call)
        for key in call.keys:
            before = await _row(database, _FIND, key=key)
            if before is not None and not before["undone"]:
                await work(dict(before["result"]))
            await database.execute(_UNDONE, {"key": key})


async def found(database: psycopg.AsyncConnection[Any], key: str) -> Found | None:
    """What became of a key, for an Agent's `find`."""
    row = await _row(database, _FIND, key=key)
    if row is None:
        return None
    return Found(state="undone" if row["undone"] else "done", status=200, body=row["result"] or {})


async def _pass_fence(database: psycopg.AsyncConnection[Any], call: Call) -> None:
    """Note the attempt, and hold the task's row: what is at work for the same task waits."""
    if await _row(database, _FENCE, task_id=call.task_id, epoch=call.epoch) is None:
        raise OvertakenFault(f"a later attempt of task {call.task_id} than {call.epoch} was here")


async def _row(database: psycopg.AsyncConnection[Any], statement: str, **params: Any) -> dict[str, Any] | None:
    async with database.cursor(row_factory=dict_row) as cursor:
        return await (await cursor.execute(statement, params)).fetchone()
