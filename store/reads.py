"""Plain reads of the state store, for people and tools: they decide nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import TypeVar

from domain.faults import NotFound
from domain.states import TaskState
from store.database import Database, Params
from store.queries import query
from store.rows import Alert, Compensation, DeadLetter, DefinitionRow, Event, Row, ServiceEvent, ServiceRow, Step, Task

R = TypeVar("R", bound=Row)

_POLL_S = 0.1
_OF_TASK, _OF_TASKS = "WHERE task_id = %(task_id)s", "WHERE task_id = ANY(%(ids)s)"
_SHOWN = "SELECT name, version, clock_timestamp() - max(seen_at) AS since FROM presence GROUP BY name, version"


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

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, task_id: str) -> TaskPage:
        """Everything about one task.

        Raises:
            NotFound: There is no such task.
        """
        of_it = {"task_id": task_id}
        _, (tasks, about, steps, log, events, alerts, services) = await self._database.transaction(
            (_select(Task, _OF_TASK), of_it),
            (query("about_task"), of_it),
            (_select(Step, f"{_OF_TASK} ORDER BY position"), of_it),
            (_select(Compensation, f"{_OF_TASK} ORDER BY seq"), of_it),
            (_select(Event, f"{_OF_TASK} ORDER BY number"), of_it),
            (_select(Alert, f"{_OF_TASK} ORDER BY id"), of_it),
            (_select(ServiceRow), {}),
        )
        if not tasks:
            raise NotFound(f"there is no task {task_id!r}: `python starter.py list` shows those there are")
        task, blocked_by = Task.model_validate(tasks[0]), about[0]["blocked_by"]
        breakers = [ServiceRow.model_validate(row) for row in services if row["name"] == blocked_by]
        return TaskPage(
            task=task,
            steps=[Step.model_validate(row) for row in steps],
            undo_log=[Compensation.model_validate(row) for row in log],
            events=[Event.model_validate(row) for row in events],
            alerts=[Alert.model_validate(row) for row in alerts],
            blocked_by=breakers[0] if breakers and not task.state.is_settled else None,
            now=about[0]["now"],
            late_call_margin=about[0]["margin"],
        )

    async def tasks(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """Those of these tasks that there are, in the order in which they are asked for, each once."""
        found = {t.task_id: t for t in await self._all(Task, _OF_TASKS, {"ids": list(task_ids)})}
        return [found[task_id] for task_id in dict.fromkeys(task_ids) if task_id in found]

    async def known_tasks(self, task_ids: Sequence[str]) -> Sequence[Task]:
        """These tasks, in the order in which they are asked for, each once.

        Raises:
            NotFound: There is none with some of these ids.
        """
        tasks = await self.tasks(task_ids)
        if missing := sorted(set(task_ids) - {t.task_id for t in tasks}):
            raise NotFound(f"there is no task {', '.join(missing)}")
        return tasks

    async def newest_tasks(
        self, *, states: Collection[TaskState] | None = None, definition: str | None = None, limit: int = 50
    ) -> Sequence[Task]:
        """Tasks, newest first; `states`: only those in one of these."""
        terms = {"state = ANY(%(states)s)": states, "definition = %(definition)s": definition}
        wanted = " AND ".join(term for term, value in terms.items() if value is not None) or "true"
        params = {"states": [s.value for s in states or ()], "definition": definition, "limit": limit}
        return await self._all(Task, f"WHERE {wanted} ORDER BY created_at DESC, task_id LIMIT %(limit)s", params)

    async def steps(self, task_ids: Sequence[str]) -> Sequence[Step]:
        """Steps of these tasks, in order."""
        return await self._all(Step, f"{_OF_TASKS} ORDER BY task_id, position", {"ids": list(task_ids)})

    async def undo_logs(self, task_ids: Sequence[str]) -> Sequence[Compensation]:
        """Entries of the compensation logs of these tasks, by task and seq."""
        return await self._all(Compensation, f"{_OF_TASKS} ORDER BY task_id, seq", {"ids": list(task_ids)})

    async def events(self, task_ids: Sequence[str]) -> Sequence[Event]:
        """Events of these tasks, by task and number."""
        return await self._all(Event, f"{_OF_TASKS} ORDER BY task_id, number", {"ids": list(task_ids)})

    async def definitions(self) -> Sequence[tuple[DefinitionRow, timedelta | None]]:
        """Definitions on record by name and version, and how long ago a worker that is still there showed each."""
        _, (shown, rows) = await self._database.transaction(
            (_SHOWN, {}), (_select(DefinitionRow, "ORDER BY name, version"), {})
        )
        since = {(row["name"], row["version"]): row["since"] for row in shown}
        return [(d, since.get((d.name, d.version))) for d in map(DefinitionRow.model_validate, rows)]

    async def services(self) -> tuple[Sequence[ServiceRow], datetime]:
        """Every service that a definition on record names, by name, with its breaker, and the time now."""
        _, ((clock,), rows) = await self._database.transaction(
            ("SELECT clock_timestamp() AS now", {}), (_select(ServiceRow), {})
        )
        now: datetime = clock["now"]
        known = {row["name"]: ServiceRow.model_validate(row) for row in rows}
        named = {service for d in await self._all(DefinitionRow) for service in _services_of(d)}
        return [known.get(name) or ServiceRow(name=name, since=now) for name in sorted(named | known.keys())], now

    async def breaker_moves(self, service: str, limit: int = 20) -> Sequence[ServiceEvent]:
        """What last moved the breaker of a service, newest first."""
        rest = "WHERE service = %(service)s ORDER BY id DESC LIMIT %(limit)s"
        return await self._all(ServiceEvent, rest, {"service": service, "limit": limit})

    async def dead_letters(self, task_id: str | None = None, limit: int = 50) -> Sequence[DeadLetter]:
        """The last submissions that contradict what is on record, of all tasks or of one, newest first."""
        rest = f"{_OF_TASK if task_id is not None else ''} ORDER BY id DESC LIMIT %(limit)s"
        return await self._all(DeadLetter, rest, {"task_id": task_id, "limit": limit})

    async def dead_letter(self, number: int) -> DeadLetter:
        """The dead letter of that number.

        Raises:
            NotFound: There is none.
        """
        found = await self._all(DeadLetter, "WHERE id = %(id)s", {"id": number})
        if not found:
            raise NotFound(f"there is no dead letter {number}: `python starter.py dead-letters` shows those there are")
        return found[0]

    async def alerts(self, limit: int = 50) -> Sequence[Alert]:
        """The last alerts, newest first."""
        return await self._all(Alert, "ORDER BY id DESC LIMIT %(limit)s", {"limit": limit})

    async def wait_state(
        self, task_ids: Sequence[str], states: frozenset[TaskState], timeout: timedelta
    ) -> Sequence[Task]:
        """Wait until every one of these tasks is in one of these states. Returns them as they are then.

        Raises:
            TimeoutError: Some are not in time. NotFound: There is no such task.
        """
        give_up_at = monotonic() + timeout.total_seconds()
        while True:
            tasks = await self.known_tasks(task_ids)
            waiting = [t for t in tasks if t.state not in states]
            if not waiting:
                return tasks
            if monotonic() > give_up_at:
                first = waiting[0]
                raise TimeoutError(f"{len(waiting)} of {len(tasks)} not there yet: {first.task_id} is {first.state}")
            await asyncio.sleep(_POLL_S)

    async def _all(self, kind: type[R], rest: str = "", params: Params | None = None) -> list[R]:
        return [kind.model_validate(row) for row in await self._database.rows(_select(kind, rest), params)]


def _select(kind: type[Row], rest: str = "") -> str:
    return f"SELECT {', '.join(kind.model_fields)} FROM {kind.table} {rest}"  # noqa: S608 (names of our own)


def _services_of(definition: DefinitionRow) -> set[str]:
    """Services that the steps of a definition, and their undos, need."""
    steps = definition.policies["steps"].values()
    return {action.partition(".")[0] for s in steps for action in (s["action"], s["undo"]) if action}


@asynccontextmanager
async def open_reads(dsn: str) -> AsyncIterator[Reads]:
    """Reads on the state store at `dsn`."""
    async with Database(dsn, name="state store", size=2) as database:
        yield Reads(database)
