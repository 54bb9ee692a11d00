"""Plain reads of the state store, for people and tools: through SQLModel, deciding nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from domain.faults import NotFound
from domain.states import SETTLED, TaskState
from store.connection import SQLALCHEMY, connect_async, reaching
from store.tables import Alert, Compensation, DefinitionRow, Event, ServiceEvent, ServiceRow, Step, Sweep, Task

_POLL_S = 0.1


@dataclass(frozen=True)
class TaskPage:
    """One task with everything on record about it: steps in order, events by number, undo log by seq.

    `blocked_by`: the service whose open breaker keeps the task from its next step, or the next step's undo.
    `late_call_margin`: for so long after its deadline a call may still arrive.
    """

    task: Task
    steps: Sequence[Step]
    undo_log: Sequence[Compensation]
    events: Sequence[Event]
    alerts: Sequence[Alert]
    blocked_by: ServiceRow | None
    now: datetime
    late_call_margin: timedelta


class Reads:
    """Reads of one state store."""

    def __init__(self, engine: AsyncEngine, place: str) -> None:
        self._engine, self._place = engine, place

    async def page(self, task_id: str) -> TaskPage:
        """Everything about one task.

        Raises:
            NotFound: There is no such task.
        """
        async with self._session() as session:
            task = await session.get(Task, task_id)
            if task is None:
                raise NotFound(f"there is no task {task_id!r}: `python starter.py list` shows those there are")

            async def all_of(table: Any, order: Any) -> Sequence[Any]:
                query = select(table).where(col(table.task_id) == task_id).order_by(order)
                return (await session.exec(query)).all()

            needed = func.next_service(task_id, task.state is TaskState.COMPENSATING)
            blocks = select(ServiceRow).where(
                col(ServiceRow.name) == needed, func.is_blocked(col(ServiceRow.name), task_id)
            )
            now, margin = (await session.exec(select(func.clock_timestamp(), func.late_call_margin()))).one()
            return TaskPage(
                task=task,
                steps=await all_of(Step, col(Step.position)),
                undo_log=await all_of(Compensation, col(Compensation.seq)),
                events=await all_of(Event, col(Event.number)),
                alerts=await all_of(Alert, col(Alert.id)),
                blocked_by=None if task.state.is_settled else (await session.exec(blocks)).first(),
                now=now,
                late_call_margin=margin,
            )

    async def tasks(
        self,
        *,
        ids: Sequence[str] | None = None,
        states: Collection[TaskState] | None = None,
        definition: str | None = None,
        limit: int = 50,
    ) -> Sequence[Task]:
        """Tasks, newest first; `states`: only those in one of these."""
        query = select(Task).order_by(col(Task.created_at).desc(), col(Task.task_id)).limit(limit)
        if ids is not None:
            query = query.where(col(Task.task_id).in_(ids))
        if states is not None:
            query = query.where(col(Task.state).in_(states))
        if definition is not None:
            query = query.where(col(Task.definition) == definition)
        async with self._session() as session:
            return (await session.exec(query)).all()

    async def steps(self, task_ids: Sequence[str]) -> Sequence[Step]:
        """Steps of these tasks, in order."""
        query = select(Step).where(col(Step.task_id).in_(task_ids)).order_by(col(Step.task_id), col(Step.position))
        async with self._session() as session:
            return (await session.exec(query)).all()

    async def undo_logs(self, task_ids: Sequence[str]) -> Sequence[Compensation]:
        """Entries of the compensation logs of these tasks, by task and seq."""
        order = (col(Compensation.task_id), col(Compensation.seq))
        async with self._session() as session:
            query = select(Compensation).where(col(Compensation.task_id).in_(task_ids)).order_by(*order)
            return (await session.exec(query)).all()

    async def events(self, task_ids: Sequence[str]) -> Sequence[Event]:
        """Events of these tasks, by task and number."""
        query = select(Event).where(col(Event.task_id).in_(task_ids)).order_by(col(Event.task_id), col(Event.number))
        async with self._session() as session:
            return (await session.exec(query)).all()

    async def count_by_state(self, pipeline: str | None = None) -> dict[TaskState, int]:
        """How many tasks, of all pipelines or of one, are in each state; grows with the table, so for people only."""
        query = select(Task.state, func.count()).group_by(col(Task.state))
        if pipeline:
            query = query.where(Task.definition == pipeline)
        async with self._session() as session:
            rows = await session.exec(query)
            return {TaskState(state): int(count) for state, count in rows.all()}

    async def definitions(self) -> Sequence[tuple[DefinitionRow, timedelta]]:
        """Definitions on record by name and version, and how long ago a worker last showed that it has each."""
        age = func.clock_timestamp() - col(DefinitionRow.seen_at)
        query = select(DefinitionRow, age).order_by(col(DefinitionRow.name), col(DefinitionRow.version))
        async with self._session() as session:
            return [(row, since) for row, since in (await session.exec(query)).all()]

    async def services(self) -> tuple[Sequence[ServiceRow], datetime]:
        """Every service that a definition on record names, by name, with its breaker, and the time now."""
        async with self._session() as session:
            known = {row.name: row for row in (await session.exec(select(ServiceRow))).all()}
            definitions = (await session.exec(select(DefinitionRow))).all()
            named = {service for d in definitions for service in _services_of(d)}
            now = (await session.exec(select(func.clock_timestamp()))).one()
        return [known.get(name) or ServiceRow(name=name, since=now) for name in sorted(named | known.keys())], now

    async def breaker_moves(self, service: str, limit: int = 20) -> Sequence[ServiceEvent]:
        """What last moved the breaker of a service, newest first."""
        query = select(ServiceEvent).where(col(ServiceEvent.service) == service).order_by(col(ServiceEvent.id).desc())
        async with self._session() as session:
            return (await session.exec(query.limit(limit))).all()

    async def last_sweeps(self, limit: int = 10) -> Sequence[Sweep]:
        """The last sweeps, newest first."""
        async with self._session() as session:
            return (await session.exec(select(Sweep).order_by(col(Sweep.id).desc()).limit(limit))).all()

    async def alerts(self, limit: int = 50) -> Sequence[Alert]:
        """The last alerts, newest first."""
        async with self._session() as session:
            return (await session.exec(select(Alert).order_by(col(Alert.id).desc()).limit(limit))).all()

    async def wait_settled(self, task_ids: Sequence[str], timeout: timedelta) -> Sequence[Task]:
        """Wait until every one of these tasks is settled. Returns them as they are then.

        Raises:
            TimeoutError: Some are not settled in time. NotFound: There is no such task.
        """
        return await self.wait_state(task_ids, SETTLED, timeout)

    async def wait_state(
        self, task_ids: Sequence[str], states: frozenset[TaskState], timeout: timedelta
    ) -> Sequence[Task]:
        """Wait until every one of these tasks is in one of these states."""
        give_up_at = monotonic() + timeout.total_seconds()
        wanted = list(dict.fromkeys(task_ids))
        while True:
            tasks = await self.tasks(ids=wanted, limit=len(wanted))
            if missing := sorted(set(wanted) - {t.task_id for t in tasks}):
                raise NotFound(f"there is no task {missing[0]!r}")
            waiting = [t for t in tasks if t.state not in states]
            if not waiting:
                return tasks
            if monotonic() > give_up_at:
                first = waiting[0]
                raise TimeoutError(f"{len(waiting)} of {len(tasks)} not there yet: {first.task_id} is {first.state}")
            await asyncio.sleep(_POLL_S)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        with reaching(self._place):
            async with AsyncSession(self._engine) as session:
                yield session


def _services_of(definition: DefinitionRow) -> set[str]:
    """Services that the steps of a definition, and their undos, need."""
    steps = definition.policies["steps"].values()
    return {action.partition(".")[0] for s in steps for action in (s["action"], s["undo"]) if action}


@asynccontextmanager
async def open_reads(dsn: str, place: str = "state store") -> AsyncIterator[Reads]:
    """Reads on the state store at `dsn`."""
    engine = create_async_engine(SQLALCHEMY, async_creator=lambda: connect_async(dsn), pool_size=2, pool_pre_ping=True)
    try:
        yield Reads(engine, place)
    finally:
        await engine.dispose()
