"""The dispatcher: a claim is the only thing that starts a run, and this is the only thing that claims.

It claims as many tasks as there are free slots, reads their business records, and starts each run on its own worker.
It is woken by NOTIFY, by the end of a run in this process, and by a slow poll behind both. `starter.py start` uses
the same code for the tasks it just submitted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Literal

import psycopg
import structlog
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from domain.definition import Definition, Registry
from domain.faults import Unreachable
from domain.messages import End, RunInput
from domain.states import TaskState
from runtime.search_attributes import ATTEMPT_KEY, DEFINITION_KEY, SUBMITTER_KEY, TASK_ID_KEY
from runtime.temporal import queue_of
from store.connection import connect_async
from store.intake import Intake
from store.orders import Orders, Record
from store.services import Services
from store.snapshot import Snapshot
from store.state_store import CHANNEL, Claim, StateStore

log = structlog.get_logger(__name__)

_RETRY = timedelta(seconds=1)
_LONGEST_WAIT = timedelta(minutes=5)
"""A task whose business record is lost is looked at again after so long at most."""

_LONGEST_PAUSE_S = 30.0
_FOR_GOOD = (
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
)
"""Refusals that waiting does not mend: no such namespace or search attribute, no permission. `doctor` names them."""


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
        services: Services,
        registry: Registry,
        *,
        worker: str,
        slots: int,
        orphan_grace: timedelta,
        poll_interval: timedelta = timedelta(seconds=2),
        eager: bool = True,
        draining: asyncio.Event | None = None,
    ) -> None:
        self._client, self._store, self._orders = client, store, orders
        self._intake, self._services = intake, services
        self._worker, self._slots = worker, slots
        self._orphan_grace, self._poll, self._eager = orphan_grace, poll_interval, eager
        self._timeouts = {(d.name, d.version): execution_timeout(d) for d in registry}
        self._draining = draining or asyncio.Event()
        self._wake = asyncio.Event()
        self._failed, self._failed_rounds = False, 0

    def wake(self) -> None:
        """Look for work now: a slot may be free, or a task may be there."""
        self._wake.set()

    async def run(self) -> None:
        """Claim and start until the worker drains. A store or server out of reach is waited out."""
        listener = asyncio.create_task(self._listen())
        try:
            while not self._draining.is_set():
                self._wake.clear()
                self._failed = False
                try:
                    started = await self.run_once()
                except Unreachable as error:
                    log.warning("store out of reach", error=str(error))
                    started, self._failed = [], True
                if self._failed:
                    await self._back_off()
                    continue
                self._failed_rounds = 0
                if not started:
                    await self._pause()
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def run_once(self) -> list[Started]:
        """One round: claim what there is room for, and start it; some of it as probes of services that were out."""
        await self._services.lease(list(self._timeouts))
        claims = await self._store.claim(self._worker, list(self._timeouts), self._slots)
        return await self._start_all(claims)

    async def start_only(self, task_ids: Sequence[str]) -> list[Started]:
        """One round for these tasks alone, as many as there is room for: what `starter.py start` does."""
        claims = await self._store.claim(self._worker, list(self._timeouts), self._slots, task_ids)
        return await self._start_all(claims)

    async def _start_all(self, claims: Sequence[Claim]) -> list[Started]:
        if not claims:
            return []
        try:
            records = await self._orders.load([c.task.task_id for c in claims])
        except Unreachable as error:
            await asyncio.gather(*(self._give_back(c, str(error)) for c in claims))
            return []
        outcomes = await asyncio.gather(*(self._take_up(c, records.get(c.task.task_id)) for c in claims))
        return [s for s in outcomes if s is not None]

    async def _take_up(self, claim: Claim, found: Record | None) -> Started | None:
        """Start what was claimed, if this worker still starts anything and the business record is the task's own."""
        if self._draining.is_set():
            await self._store.release_unstarted(claim, "the worker is shutting down", timedelta(0))
            return None
        if claim.task.state is TaskState.COMPENSATING:
            return await self._start(claim, claim.task.as_run({}))  # an undo needs nothing but its log
        if found is None or found.record is None or found.digest != claim.task.record_digest:
            await self._set_aside(claim)
            return None
        return await self._start(claim, claim.task.as_run(found.record))

    async def _start(self, claim: Claim, run: RunInput) -> Started | None:
        """Start a run; if it can't be told whether it started, the row is released unless the run has bound itself."""
        try:
            handle = await self._client.start_workflow(
                run.definition,
                run,
                id=claim.locked_by,
                task_queue=queue_of(run.definition, run.version),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                execution_timeout=self._timeouts[(run.definition, run.version)],
                request_eager_start=self._eager,
                static_summary=f"{'undo of ' if run.undo else ''}{run.definition} {run.task_id}, attempt {run.epoch}",
                search_attributes=_search_attributes(claim),
                rpc_timeout=timedelta(seconds=5),
            )
        except WorkflowAlreadyStartedError:
            return Started(run.task_id, claim.locked_by, None)
        except RPCError as error:
            cause = f"Temporal did not start the run: {error.message}"
            await self._give_back(claim, cause, record=None if run.undo else "there")
            if error.status in _FOR_GOOD:
                await self._intake.alert_once("start_refused", run.task_id, cause)
            return None
        return Started(run.task_id, claim.locked_by, handle.result_run_id)

    async def _give_back(self, claim: Claim, cause: str, record: Literal["there"] | None = None) -> None:
        self._failed = True
        log.warning(cause, task_id=claim.task.task_id, attempt=claim.locked_by)
        await self._store.release_unstarted(claim, cause, _RETRY, record=record)

    async def _set_aside(self, claim: Claim) -> None:
        """No business record of its own: put the row back for a grace period, then remove it (A6).

        A task that has begun, or may have been acknowledged, had its record: it is never removed, but waits for it,
        longer and longer, with an alert.
        """
        task = claim.task
        has_grace = claim.age < self._orphan_grace and not task.has_begun
        wait = _RETRY if has_grace else min(_RETRY * 2 ** min(task.claims_in_vain - 1, 10), _LONGEST_WAIT)
        report = await self._store.release_unstarted(claim, "its business record is not there", wait, record="missing")
        if has_grace or report.end is not End.RELEASED:
            return
        seen = await self._store.snapshot(task.task_id)
        if seen is None or seen.last_event != task.last_event + 1:
            return  # whoever completes the pair meanwhile adds an event
        if await self._intake.is_unfinished(task.task_id):
            await self._withdraw(seen)
        else:
            log.error("business record missing", task_id=task.task_id)
            await self._intake.alert_once("record_missing", task.task_id, _missing(seen))

    async def _withdraw(self, seen: Snapshot) -> None:
        """Remove the row of a submission that was never finished, only as it was seen."""
        if not await self._orders.abandon(seen.task_id, seen.definition, seen.record_digest):
            return
        message = (
            f"its submission by {seen.submitter}, {seen.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, was never"
            " finished, and is removed: from its first minute on no claim has found a business record of its own"
        )
        if await self._intake.withdraw(seen, message):
            log.warning("submission abandoned", task_id=seen.task_id)

    async def _back_off(self) -> None:
        """After a round with starts that failed: pause longer and longer, whoever wakes us."""
        self._failed_rounds += 1
        most = min(_LONGEST_PAUSE_S, 2.0 ** min(self._failed_rounds, 8))
        pause = most * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), pause)

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
                dsn, name = self._store.database.dsn, "dispatcher-listen"
                async with await connect_async(dsn, autocommit=True, application_name=name) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    async for _ in connection.notifies():
                        self.wake()
            except psycopg.Error as error:
                log.warning("not listening", error=str(error).strip())
            await asyncio.sleep(1)


def _missing(task: Snapshot) -> str:
    """What a person is told of a task whose business record is lost."""
    known = "has begun" if task.has_begun else "may have been acknowledged"
    return (
        f"task {task.task_id} {known}, and the orders database has no business record of its own for it: put the record"
        f" back, and it goes on; or `python starter.py compensate {task.task_id} --reason TEXT` undoes it, unless it is"
        " past its pivot. Others may lack theirs: `python starter.py audit` names those that have begun"
    )


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
