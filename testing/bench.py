"""The application on real parts, and a few words to move it with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
from temporalio.client import Client

from devstack.stack.environment import SERVICES
from domain.ids import attempt_id
from domain.states import SETTLED, StepState, TaskState
from runtime.roles import Role, running
from runtime.settings import Settings
from runtime.wiring import Stores, sweep_settings
from store.reads import Reads, TaskPage
from store.submission import SubmissionOutcome
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport
from supervisor.sweep import sweep_once
from testing.simulators import Simulators
from testing.waiting import PATIENCE_S, eventually


class Bench:
    """The application under test: real parts, and a few words to move them with."""

    def __init__(
        self,
        settings: Settings,
        client: Client,
        stores: Stores,
        reads: Reads,
        supervision: Supervision,
    ) -> None:
        self.settings, self.client, self.stores, self.reads = settings, client, stores, reads
        self.supervision, self._supervisor = supervision, SupervisorActivities(supervision, client)

    async def submit(
        self, record: dict[str, Any], task_id: str, definition: str = "order", **more: Any
    ) -> SubmissionOutcome:
        """Submit; the dispatchers hear of it."""
        message = {"task_id": task_id, "definition": definition, "record": record, **more}
        return await self.stores.desk.submit(self.stores.desk.parse(json.dumps(message)))

    @asynccontextmanager
    async def worker(
        self, *roles: Role, services: set[str] | None = None, settings: Settings | None = None
    ) -> AsyncIterator[None]:
        """A worker with these roles (default: scheduler, agents, callbacks; no Supervisor)."""
        wanted = set(roles) or {Role.SCHEDULER, Role.AGENTS, Role.CALLBACKS}
        async with running(settings or self.settings, self.client, wanted, services or set(SERVICES)):
            yield

    async def settled(self, *task_ids: str, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until these tasks are settled; the state of the first."""
        await self.reads.wait_state(task_ids, SETTLED, timedelta(seconds=within_s))
        return (await self.page(task_ids[0])).task.state

    async def reached(self, task_id: str, *states: TaskState, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until a task is in one of these states."""
        (task,) = await self.reads.wait_state([task_id], frozenset(states), timedelta(seconds=within_s))
        return task.state

    async def settled_with_sweeps(self, task_id: str, *, within_s: float = PATIENCE_S) -> TaskState:
        """Wait until a task is settled, sweeping meanwhile as the Schedule would, every half second."""
        async with asyncio.timeout(within_s):
            while True:
                with suppress(TimeoutError):
                    return await self.settled(task_id, within_s=0.5)
                await self.sweep()

    async def step_reached(self, task_id: str, step: str, state: StepState) -> None:
        """Wait until a step is in this state."""

        async def there() -> bool:
            return any(s.name == step and s.state is state for s in (await self.page(task_id)).steps)

        await eventually(there)

    async def sent(self, simulators: Simulators, service: str, key: str) -> None:
        """Wait until a service has received a call with this key."""

        async def there() -> bool:
            return key in [c["key"] for c in simulators.ledger(service, key.partition(":")[0])["calls"]]

        await eventually(there)

    async def refused(self, simulators: Simulators, service: str, task_id: str) -> dict[str, Any]:
        """Wait until a service has refused a call for a task; its ledger then."""

        async def there() -> bool:
            return bool(simulators.ledger(service, task_id)["refusals"])

        await eventually(there)
        return simulators.ledger(service, task_id)

    def postpone(self, task_id: str) -> None:
        """Let a Pending task wait for an hour before it may be claimed."""
        with psycopg.connect(self.settings.admin_database_url.get_secret_value()) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(
                "UPDATE task SET not_before = clock_timestamp() + interval '1 hour' WHERE task_id = %s", (task_id,)
            )

    async def expire(self, task_id: str) -> None:
        """Let a held task's deadlines, and its running steps', be over now, without waiting for them."""
        owner = self.settings.admin_database_url.get_secret_value()
        # Not a connection that blocks: a worker in this event loop may hold the row.
        async with await psycopg.AsyncConnection.connect(owner) as connection:
            await connection.execute("SET session_replication_role = replica")
            for statement in (
                "UPDATE task SET complete_by = clock_timestamp() WHERE task_id = %s AND locked_by IS NOT NULL",
                "UPDATE step SET complete_by = clock_timestamp() WHERE task_id = %s AND state IN ('Running','Undoing')",
            ):
                await connection.execute(statement, (task_id,))

    async def page(self, task_id: str) -> TaskPage:
        """Everything on record about a task."""
        return await self.reads.page(task_id)

    async def attempts(self, task_id: str) -> list[str]:
        """Workflow ids of a task's attempts."""
        task = (await self.page(task_id)).task
        return [attempt_id(task.definition, task_id, n) for n in range(1, task.epoch + 1)]

    async def contents(self, task_id: str) -> list[Any]:
        """Everything on record about a task, without the time of looking: to see that nothing was changed."""
        page = await self.page(task_id)
        return [page.task, page.steps, page.undo_log, page.events, page.alerts]

    async def sweep(self) -> SweepReport:
        """One sweep, by hand: that there was none for long is no outage."""
        terms = sweep_settings(self.settings).model_copy(update={"interval_s": 3_600})
        return await sweep_once(self._supervisor, terms)
