"""The dispatcher: a claim is the only thing that starts a run, and this is the only thing that claims.

It claims as many tasks as there are free slots, reads their business records, and starts each run on its own worker.
It is woken by NOTIFY, by the end of a run in this process, and by a slow poll behind both. `starter.py start` uses
the same code for the tasks it just submitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import structlog
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from domain.definition import Definition, Registry
from domain.faults import Unreachable
from domain.messages import RunInput
from runtime.search_attributes import ATTEMPT_KEY, DEFINITION_KEY, SUBMITTER_KEY, TASK_ID_KEY
from runtime.temporal import TASK_QUEUE
from store.intake import Intake
from store.orders import Orders
from store.state_store import CHANNEL, Claim, StateStore

log = structlog.get_logger(__name__)

_RETRY = timedelta(seconds=1)


@dataclass(frozen=True)
class Started:
    """A run that was started (or may have been, if the answer was lost)."""

    task_id: str
    workflow_id: str
    run_id: str | None


class Dispatcher:
    """Claims and starts. `slots`: tasks held at once; `orphan_grace`: see `Settings`.

    `eager`: ask for the first workflow task with the start; only where a worker runs in this process.
    """

    def __init__(
        self,
        client: Client,
        store: StateStore,
        orders: Orders,
        intake: Intake,
        registry: Registry,
        *,
        worker: str,
        slots: int,
        orphan_grace: timedelta,
        poll_interval: timedelta = timedelta(seconds=2),
        eager: bool = True,
    ) -> None:
        self._client, self._store, self._orders, self._intake = client, store, orders, intake
        self._registry, self._worker, self._slots = registry, worker, slots
        self._orphan_grace, self._poll, self._eager = orphan_grace, poll_interval, eager
        self._loaded = [(d.name, d.version) for d in registry]
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look for work now: a slot may be free, or a task may be there."""
        self._wake.set()

    async def run(self) -> None:
        """Claim and start until cancelled. A store or server out of reach is waited out."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            while True:
                self._wake.clear()
                try:
                    started = await self.run_once()
                except Unreachable as error:
                    log.warning("store out of reach", error=str(error))
                    started = []
                if not started:
                    await self._pause()

    async def run_once(self) -> list[Started]:
        """One round: claim what there is room for, and start it."""
        claims = await self._store.claim(self._worker, self._loaded, self._slots)
        return await self._start_all(claims)

    async def start_only(self, task_ids: Sequence[str]) -> list[Started]:
        """One round for these tasks alone, as many as there is room for: what `starter.py start` does."""
        claims = await self._store.claim(self._worker, self._loaded, self._slots, task_ids)
        return await self._start_all(claims)

    async def _start_all(self, claims: Sequence[Claim]) -> list[Started]:
        if not claims:
            return []
        try:
            records = await self._orders.load([c.task.task_id for c in claims])
        except Unreachable as error:
            await asyncio.gather(*(self._store.release_unstarted(c, str(error), _RETRY) for c in claims))
            return []
        started = []
        for claim in claims:
            found = records.get(claim.task.task_id)
            if found is None or found.record is None:
                await self._set_aside(claim)
            else:
                started.append(self._start(claim, claim.task.as_run(found.record)))
        return [s for s in await asyncio.gather(*started) if s is not None]

    async def _start(self, claim: Claim, run: RunInput) -> Started | None:
        """Start a run; if it can't be told whether it started, the row is released unless the run has bound itself."""
        definition = self._registry.find(run.definition, run.version)
        try:
            handle = await self._client.start_workflow(
                run.definition,
                run,
                id=claim.locked_by,
                task_queue=TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                execution_timeout=execution_timeout(definition) if definition else None,
                request_eager_start=self._eager,
                static_summary=f"{'undo of ' if run.undo else ''}{run.definition} {run.task_id}, attempt {run.epoch}",
                search_attributes=_search_attributes(claim),
                rpc_timeout=timedelta(seconds=5),
            )
        except WorkflowAlreadyStartedError:
            return Started(run.task_id, claim.locked_by, None)
        except RPCError as error:
            cause = f"Temporal did not start the run: {error.message}"
            log.warning(cause, task_id=run.task_id, attempt=claim.locked_by)
            await self._store.release_unstarted(claim, cause, _RETRY)
            return None
        return Started(run.task_id, claim.locked_by, handle.result_run_id)

    async def _set_aside(self, claim: Claim) -> None:
        """No business record yet: put the row back for a grace period, then remove what was never acknowledged (A6)."""
        task = claim.task
        await self._store.release_unstarted(claim, "the business record is not there yet", _RETRY)
        if claim.age < self._orphan_grace:
            return
        if await self._orders.abandon(task.task_id, task.definition):
            removed = await self._intake.withdraw(task.task_id)
            log.warning("submission abandoned", task_id=task.task_id, removed=removed)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._poll.total_seconds()):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _listen(self) -> None:
        """Turn NOTIFY into wake-ups; the slow poll covers for it while the connection is gone."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._store.database.dsn,
                    autocommit=True,
                    application_name="dispatcher-listen",
                    connect_timeout=5,
                ) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for _ in connection.notifies():
                        self.wake()
            except psycopg.Error as error:
                log.warning("not listening", error=str(error).strip())
            await asyncio.sleep(1)


def execution_timeout(definition: Definition) -> timedelta:
    """Bound on one attempt: every step's time, forward or undo, and as much again for the writes between."""
    allowances = sum((s.within for s in definition.steps), timedelta(0))
    return 2 * allowances + timedelta(minutes=1)


def _search_attributes(claim: Claim) -> TypedSearchAttributes:
    task = claim.task
    return TypedSearchAttributes(
        [
            SearchAttributePair(TASK_ID_KEY, task.task_id),
            SearchAttributePair(DEFINITION_KEY, task.definition),
            SearchAttributePair(SUBMITTER_KEY, task.submitter),
            SearchAttributePair(ATTEMPT_KEY, task.epoch),
        ]
    )
