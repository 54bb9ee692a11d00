"""What both databases have on record: a page of tasks at a time, each page as of one instant of the state store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from psycopg import AsyncConnection, IsolationLevel
from psycopg.rows import dict_row

from audit.breakers import Breakers
from audit.evidence import Evidence
from audit.task import AuditedTask, TaskRow, Tolerances
from store.connection import connect_async, reaching

PAGE = 500
"""Tasks a page. Memory is bounded by a page, by what breakers did, and by the evidence."""

_NOW = "SELECT clock_timestamp() AS now"
_COUNT = "SELECT count(*) AS tasks FROM task"
_TASKS = (Path(__file__).parent / "tasks.sql").read_text()
_CIRCUMSTANCES = """
SELECT
    clock_timestamp() AS now,
    ARRAY(SELECT name FROM service WHERE coalesce(forced, state) = 'open') AS open_breakers,
    ARRAY(SELECT outage_until FROM sweep WHERE outage_until IS NOT NULL) AS outages
"""
_SERVICE_EVENTS = "SELECT service, kind, state_to, task_id, at FROM service_event ORDER BY id"
_DIGESTS = "SELECT task_id, digest FROM business_record WHERE task_id = ANY(%(ids)s)"
_OPEN_RECORDS = """
SELECT task_id FROM business_record WHERE task_id > %(after)s AND outcome IS NULL ORDER BY task_id LIMIT %(size)s
"""
_PRESENT = "SELECT task_id FROM task WHERE task_id = ANY(%(ids)s)"


@dataclass(frozen=True)
class Loader:
    """Reads both databases; writes nothing. A definition has a live worker if one showed it `alive_within`."""

    state: AsyncConnection[Any]
    orders: AsyncConnection[Any]
    tolerances: Tolerances
    alive_within: timedelta

    async def count(self) -> int:
        """How many tasks there are."""
        return int((await self._of_state(_COUNT))[0]["tasks"])

    async def now(self) -> datetime:
        """The state store's clock: read it before others are asked, to know afterwards what has moved since."""
        found: datetime = (await self._of_state(_NOW))[0]["now"]
        return found

    async def pages(
        self, ids: Sequence[str] | None, evidence: Evidence, *, size: int
    ) -> AsyncIterator[list[AuditedTask]]:
        """All tasks, or those, in the order of their ids."""
        tasks = await self._page(ids, "", size, evidence)
        while tasks:
            yield tasks
            tasks = await self._page(ids, tasks[-1].row.task_id, size, evidence)

    async def orphans(self, *, size: int) -> list[str]:
        """Business records that are not closed and have no task. Each page is read before its tasks."""
        found: list[str] = []
        after = ""
        while ids := [r["task_id"] for r in await self._of_orders(_OPEN_RECORDS, after=after, size=size)]:
            present = {r["task_id"] for r in await self._of_state(_PRESENT, ids=ids)}
            found += [i for i in ids if i not in present]
            after = ids[-1]
        return found

    async def _page(self, ids: Sequence[str] | None, after: str, size: int, evidence: Evidence) -> list[AuditedTask]:
        async with self.state.transaction():
            (circumstances,) = await self._of_state(_CIRCUMSTANCES)
            breakers = Breakers.of(await self._of_state(_SERVICE_EVENTS))
            wanted = {"ids": ids, "after": after, "size": size, "alive_within": self.alive_within}
            found = [(TaskRow.model_validate(t.pop("row")), t) for t in await self._of_state(_TASKS, **wanted)]
        digests = await self._digests([row.task_id for row, _ in found])
        shared = circumstances | {"breakers": breakers, "tolerances": self.tolerances}
        return [
            AuditedTask(row=row, digest=digests.get(row.task_id), **of_task, **shared, **_evidence_on(row, evidence))
            for row, of_task in found
        ]

    async def _digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Read after the rows: what has begun had its record before."""
        return {r["task_id"]: r["digest"] for r in await self._of_orders(_DIGESTS, ids=ids)}

    async def _of_state(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        return await _rows(self.state, "state store", statement, params)

    async def _of_orders(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        return await _rows(self.orders, "orders database", statement, params)


@asynccontextmanager
async def open_loader(
    state_dsn: str, orders_dsn: str, tolerances: Tolerances, alive_within: timedelta
) -> AsyncIterator[Loader]:
    """A loader on both databases."""
    async with _connected(state_dsn, "state store") as state, _connected(orders_dsn, "orders database") as orders:
        yield Loader(state, orders, tolerances, alive_within)


@asynccontextmanager
async def _connected(dsn: str, place: str) -> AsyncIterator[AsyncConnection[Any]]:
    """Each transaction sees one snapshot, so that a task that moves meanwhile is not seen half."""
    with reaching(place):
        connection = await connect_async(dsn, row_factory=dict_row)
    async with connection:
        await connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        yield connection


async def _rows(connection: AsyncConnection[Any], place: str, statement: str, params: Any) -> list[dict[str, Any]]:
    with reaching(place):
        return await (await connection.execute(statement, params)).fetchall()


def _evidence_on(row: TaskRow, evidence: Evidence) -> dict[str, Any]:
    """What there is on one task. Ledgers that were read before it last moved may not fit it, and are left out."""
    ledgers, runs, replies = evidence.ledgers, evidence.runs, evidence.replies
    return {
        "ledgers": ledgers.for_task(row.task_id) if ledgers and row.updated_at < ledgers.asked_at else {},
        "runs": runs.by_task.get(row.task_id, ()) if runs else (),
        "runs_asked_at": runs.asked_at if runs else None,
        "replies": replies.by_task.get(row.task_id, ()) if replies and row.submitter in replies.submitters else None,
    }
