"""Loads pictures, a page of tasks at a time, each page in one snapshot of the state store.

Memory is bounded by a page, and by the ledgers if they are asked for (only the simulators have any).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
from sqlalchemy import func
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from audit.picture import (
    AlertView,
    DefinitionView,
    EntryView,
    EventView,
    Ledger,
    Picture,
    StepView,
    TaskView,
    Terms,
)
from domain.faults import Unreachable, UsageError
from store.schema import sqlalchemy_url
from store.tables import Alert, BusinessRecord, Compensation, DefinitionRow, Event, Step, Task

PAGE = 500

Rows = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Ledgers:
    """The services' ledgers by task and service, read after `asked_at` by the state store's clock."""

    by_task: Mapping[str, Mapping[str, Ledger]]
    services: tuple[str, ...]
    asked_at: datetime

    def of(self, task: TaskView) -> Mapping[str, Ledger] | None:
        """Those of a task; None if it has moved since they were asked for, as they may not fit it then."""
        if task.updated_at >= self.asked_at:
            return None
        found = self.by_task.get(task.task_id, {})
        return {service: found.get(service, Ledger()) for service in self.services}


class Loader:
    """Reads both databases; writes nothing."""

    def __init__(self, state: AsyncEngine, orders: AsyncEngine, terms: Terms, alive_within: timedelta) -> None:
        self._state, self._orders, self._terms, self._alive_within = state, orders, terms, alive_within

    async def count(self) -> int:
        """How many tasks there are."""
        async with _session(self._state, "state store") as session:
            return (await session.exec(select(func.count()).select_from(Task))).one()

    async def ledgers(self, url: str) -> Ledgers:
        """The ledgers that the simulators at `url` give.

        Raises:
            Unreachable: Nothing answers there. UsageError: What answers has no ledgers.
        """
        async with _session(self._state, "state store") as session:
            asked_at: datetime = (await session.exec(select(func.clock_timestamp()))).one()
        try:
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.get(url.rstrip("/") + "/control/ledger")
            found = answer.raise_for_status().json()
        except httpx.HTTPStatusError as error:
            raise UsageError(f"no ledgers at {url}: status {error.response.status_code}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"the ledgers at {url} can't be read: {error!r}") from error
        except ValueError as error:
            raise UsageError(f"no ledgers at {url}: {error}") from error
        return Ledgers(_ledgers_by_task(found), tuple(found), asked_at)

    async def pages(
        self, ids: Sequence[str] | None = None, ledgers: Ledgers | None = None, *, page: int = PAGE
    ) -> AsyncIterator[list[Picture]]:
        """Pictures of all tasks, or of those, in the order of their ids."""
        after = ""
        while True:
            rows = await self._rows(ids, after, page)
            if not rows["tasks"]:
                return
            yield await self._pictures(rows, ledgers)
            after = rows["tasks"][-1].task_id

    async def _rows(self, ids: Sequence[str] | None, after: str, page: int) -> Rows:
        """One page of tasks and all that belongs to them, as of one instant."""
        async with _session(self._state, "state store") as session:
            now = (await session.exec(select(func.clock_timestamp()))).all()
            query = select(Task).where(col(Task.task_id) > after).order_by(col(Task.task_id)).limit(page)
            if ids is not None:
                query = query.where(col(Task.task_id).in_(ids))
            tasks = (await session.exec(query)).all()
            wanted = [t.task_id for t in tasks]

            async def all_of(table: Any, order: Any) -> Sequence[Any]:
                found = select(table).where(col(table.task_id).in_(wanted)).order_by(order)
                return (await session.exec(found)).all() if wanted else []

            return {
                "now": now,
                "tasks": tasks,
                "steps": await all_of(Step, col(Step.position)),
                "entries": await all_of(Compensation, col(Compensation.seq)),
                "events": await all_of(Event, col(Event.number)),
                "alerts": await all_of(Alert, col(Alert.id)),
                "definitions": (await session.exec(select(DefinitionRow))).all(),
            }

    async def _pictures(self, rows: Rows, ledgers: Ledgers | None) -> list[Picture]:
        digests = await self._digests([t.task_id for t in rows["tasks"]])
        now = rows["now"][0]
        definitions = {
            (d.name, d.version): DefinitionView(
                policies=d.policies, has_live_worker=now - d.seen_at < self._alive_within
            )
            for d in rows["definitions"]
        }
        steps, entries = _by_task(rows["steps"], StepView), _by_task(rows["entries"], EntryView)
        events, alerts = _by_task(rows["events"], EventView), _by_task(rows["alerts"], AlertView)
        tasks = [TaskView.model_validate(t) for t in rows["tasks"]]
        return [
            Picture(
                task=task,
                steps=steps.get(task.task_id, ()),
                undo_log=entries.get(task.task_id, ()),
                events=events.get(task.task_id, ()),
                alerts=alerts.get(task.task_id, ()),
                digest=digests.get(task.task_id),
                definition=definitions.get((task.definition, task.version)),
                ledgers=ledgers.of(task) if ledgers else None,
                now=now,
                terms=self._terms,
            )
            for task in tasks
        ]

    async def _digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Read after the rows: what has begun had its record before."""
        query = select(BusinessRecord.task_id, BusinessRecord.digest).where(col(BusinessRecord.task_id).in_(ids))
        async with _session(self._orders, "orders database") as session:
            return dict((await session.exec(query)).all())


@asynccontextmanager
async def open_loader(state_dsn: str, orders_dsn: str, terms: Terms, alive_within: timedelta) -> AsyncIterator[Loader]:
    """A loader on both databases. A definition has a live worker if one showed it `alive_within`."""
    state, orders = _engine(state_dsn), _engine(orders_dsn)
    try:
        yield Loader(state, orders, terms, alive_within)
    finally:
        await state.dispose()
        await orders.dispose()


def _engine(dsn: str) -> AsyncEngine:
    """Each transaction sees one snapshot, so that a task that moves meanwhile is not seen half."""
    return create_async_engine(sqlalchemy_url(dsn), pool_size=1, isolation_level="REPEATABLE READ")


@asynccontextmanager
async def _session(engine: AsyncEngine, place: str) -> AsyncIterator[AsyncSession]:
    try:
        async with AsyncSession(engine) as session:
            yield session
    except OperationalError as error:
        raise Unreachable(f"{place} does not answer: {error.orig}") from error


def _by_task(rows: Iterable[Any], view: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(view.model_validate(row))
    return found


def _ledgers_by_task(found: Mapping[str, Any]) -> dict[str, dict[str, Ledger]]:
    """Calls without a key belong to no task, and are left out."""
    raw: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for service, parts in found.items():
        for part in ("effects", "tombstones", "calls"):
            for row in parts[part]:
                if row["task_id"] is not None:
                    of_task = raw.setdefault(row["task_id"], {}).setdefault(service, {})
                    of_task.setdefault(part, []).append(row)
    return {
        task: {service: Ledger.model_validate(parts) for service, parts in services.items()}
        for task, services in raw.items()
    }
