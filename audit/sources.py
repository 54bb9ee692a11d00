"""Loads pictures, a page of tasks at a time, each page in one snapshot of the state store.

Memory is bounded by a page, by what breakers did, and by the ledgers if they are asked for (only the simulators have
any).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import httpx
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from audit.breakers import Breakers
from audit.evidence import Ledgers, Witnesses
from audit.task_record import (
    AlertView,
    DefinitionView,
    EntryView,
    EventView,
    LaterAnswer,
    Picture,
    StepView,
    TaskView,
    Terms,
)
from domain.faults import Unreachable, UsageError
from domain.ids import idempotency_key
from store.connection import SQLALCHEMY, connect_async, reaching
from store.tables import (
    Alert,
    BusinessRecord,
    Compensation,
    DefinitionRow,
    Event,
    Inbox,
    Presence,
    ServiceEvent,
    ServiceRow,
    Step,
    Sweep,
    Task,
)

PAGE = 500
NOBODY = Witnesses()

Rows = Mapping[str, Sequence[Any]]

_OUTAGES = select(Sweep.outage_until).where(col(Sweep.outage_until).is_not(None))
_SERVICE_EVENTS = select(ServiceEvent).order_by(col(ServiceEvent.id))


class Loader:
    """Reads both databases; writes nothing."""

    def __init__(self, state: AsyncEngine, orders: AsyncEngine, terms: Terms, alive_within: timedelta) -> None:
        self._state, self._orders, self._terms, self._alive_within = state, orders, terms, alive_within

    async def count(self) -> int:
        """How many tasks there are."""
        async with _session(self._state, "state store") as session:
            return (await session.exec(select(func.count()).select_from(Task))).one()

    async def now(self) -> datetime:
        """The state store's clock: read it before others are asked, to know afterwards what has moved since."""
        async with _session(self._state, "state store") as session:
            found: datetime = (await session.exec(select(func.clock_timestamp()))).one()
            return found

    async def ledgers(self, url: str) -> Ledgers:
        """The ledgers that the simulators at `url` give.

        Raises:
            Unreachable: Nothing answers there. UsageError: What answers has no ledgers.
        """
        asked_at = await self.now()
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
        return Ledgers.of(found, asked_at)

    async def pages(
        self, ids: Sequence[str] | None = None, witnesses: Witnesses = NOBODY, *, page: int = PAGE
    ) -> AsyncIterator[list[Picture]]:
        """Pictures of all tasks, or of those, in the order of their ids."""
        after = ""
        while True:
            rows = await self._rows(ids, after, page)
            if not rows["tasks"]:
                return
            yield await self._pictures(rows, witnesses)
            after = rows["tasks"][-1].task_id

    async def strays(self, *, page: int = PAGE) -> list[str]:
        """Business records that are not closed and have no task. Each page is read before its tasks."""
        found: list[str] = []
        ids = await self._open_records("", page)
        while ids:
            async with _session(self._state, "state store") as session:
                there = set((await session.exec(select(Task.task_id).where(col(Task.task_id).in_(ids)))).all())
            found += [i for i in ids if i not in there]
            ids = await self._open_records(ids[-1], page)
        return found

    async def _open_records(self, after: str, page: int) -> Sequence[str]:
        query = select(BusinessRecord.task_id).where(
            col(BusinessRecord.task_id) > after, col(BusinessRecord.outcome).is_(None)
        )
        async with _session(self._orders, "orders database") as session:
            return (await session.exec(query.order_by(col(BusinessRecord.task_id)).limit(page))).all()

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

            steps = await all_of(Step, col(Step.position))
            keys = [idempotency_key(s.task_id, s.name, s.key_generation) for s in steps]
            inbox = (
                select(Inbox).where(col(Inbox.key).in_(keys)).order_by(col(Inbox.received_at), col(Inbox.response_id))
            )
            return {
                "now": now,
                "tasks": tasks,
                "steps": steps,
                "inbox": (await session.exec(inbox)).all(),
                "entries": await all_of(Compensation, col(Compensation.seq)),
                "events": await all_of(Event, col(Event.number)),
                "alerts": await all_of(Alert, col(Alert.id)),
                "definitions": (await session.exec(select(DefinitionRow))).all(),
                "presences": (await session.exec(select(Presence))).all(),
                "services": (await session.exec(select(ServiceRow))).all(),
                "outages": (await session.exec(_OUTAGES)).all(),
                "service_events": (await session.exec(_SERVICE_EVENTS)).all(),
            }

    async def _pictures(self, rows: Rows, witnesses: Witnesses) -> list[Picture]:
        digests = await self._digests([t.task_id for t in rows["tasks"]])
        now = rows["now"][0]
        definitions = {
            (d.name, d.version): DefinitionView(
                policies=d.policies,
                has_live_worker=any(
                    (p.name, p.version) == (d.name, d.version) and now - p.seen_at < self._alive_within
                    for p in rows["presences"]
                ),
            )
            for d in rows["definitions"]
        }
        breakers = Breakers.of(rows["service_events"])
        is_open = frozenset(s.name for s in rows["services"] if (s.forced or s.state) == "open")
        steps, entries = _by_task(rows["steps"], StepView), _by_task(rows["entries"], EntryView)
        inbox: dict[str, dict[str, LaterAnswer]] = {}
        for row in rows["inbox"]:
            inbox.setdefault(row.key.partition(":")[0], {}).setdefault(row.key, LaterAnswer.of(row))
        events, alerts = _by_task(rows["events"], EventView), _by_task(rows["alerts"], AlertView)
        tasks = [TaskView.model_validate(t) for t in rows["tasks"]]
        return [
            Picture(
                task=task,
                steps=steps.get(task.task_id, ()),
                undo_log=entries.get(task.task_id, ()),
                events=events.get(task.task_id, ()),
                alerts=alerts.get(task.task_id, ()),
                inbox=inbox.get(task.task_id, {}),
                digest=digests.get(task.task_id),
                definition=definitions.get((task.definition, task.version)),
                **_testimony(witnesses, task),
                breakers=breakers,
                open_breakers=is_open,
                outages=tuple(rows["outages"]),
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
    options = {"pool_size": 1, "isolation_level": "REPEATABLE READ"}
    return create_async_engine(SQLALCHEMY, async_creator=lambda: connect_async(dsn), **options)


@asynccontextmanager
async def _session(engine: AsyncEngine, place: str) -> AsyncIterator[AsyncSession]:
    with reaching(place):
        async with AsyncSession(engine) as session:
            yield session


def _by_task(rows: Iterable[Any], view: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.task_id, []).append(view.model_validate(row))
    return found


def _testimony(witnesses: Witnesses, task: TaskView) -> dict[str, Any]:
    """What the witnesses say of a task. Ledgers that were read before it last moved may not fit it, and say nothing."""
    ledgers, runs, answers = witnesses.ledgers, witnesses.runs, witnesses.answers
    return {
        "ledgers": ledgers.for_task(task.task_id) if ledgers and task.updated_at < ledgers.asked_at else None,
        "runs": runs.by_task.get(task.task_id, ()) if runs else None,
        "runs_asked_at": runs.asked_at if runs else None,
        "answers": answers.by_task.get(task.task_id, ()) if answers and task.submitter in answers.submitters else None,
    }
