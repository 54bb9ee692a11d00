"""The dispatcher: a claim is the only thing that starts a run, and this is the only thing that claims.

It claims as many tasks as there are free slots, reads their business records, and starts each run on its own worker.
It sleeps until the next task is due, and is woken by NOTIFY, by the end of a run in this process, and by a slow poll
behind both. What goes forward and what is undone don't wait for one another: an undo needs no business record.
`starter.py start` uses the same code for the tasks it just submitted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic

import psycopg
import structlog
from temporalio.client import Client

from domain.definition import Registry
from domain.faults import Unreachable
from domain.states import CLAIMABLE, TaskState
from runtime.starts import AT_ONCE, PAUSE, RunStarter, Started
from store.breakers import CircuitBreakers
from store.claims import CHANNEL, Claim
from store.connection import connect_async, is_of_rows
from store.orders import Orders, Record
from store.state_store import StateStore

log = structlog.get_logger(__name__)

_LONGEST_PAUSE_S = 30.0


class Dispatcher:
    """Claims and starts. `slots`: tasks held at once.

    `eager`: ask for the first workflow task with the start; only where a worker runs in this process.
    """

    def __init__(
        self,
        client: Client,
        store: StateStore,
        orders: Orders,
        breakers: CircuitBreakers,
        registry: Registry,
        *,
        worker: str,
        slots: int,
        poll_interval: timedelta = timedelta(seconds=2),
        eager: bool = True,
        draining: asyncio.Event | None = None,
    ) -> None:
        self._store, self._claims, self._orders, self._breakers = store, store.claims, orders, breakers
        self._worker, self._slots, self._poll = worker, slots, poll_interval
        self._definitions = [(d.name, d.version) for d in registry]
        self._starter = RunStarter(client, store.claims, registry, eager=eager)
        self._draining = draining or asyncio.Event()
        self._wakes = {state: asyncio.Event() for state in CLAIMABLE}
        self._claiming = asyncio.Lock()

    def wake(self) -> None:
        """Look for work now: a slot may be free, or a task may be there."""
        for wake in self._wakes.values():
            wake.set()

    async def run(self) -> None:
        """Claim and start until the worker drains. A store or server out of reach is waited out."""
        listener = asyncio.create_task(self._listen())
        try:
            async with asyncio.TaskGroup() as group:
                for state in CLAIMABLE:
                    group.create_task(self._work(state))
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def run_once(self, states: Sequence[TaskState] = CLAIMABLE) -> list[Started]:
        """One round: claim what there is room for, and start it; some of it as probes of services that were out.

        Raises:
            Unreachable: A store or Temporal is; what could not be started for that is given back.
        """
        if await self._breakers.lease(self._definitions):
            self.wake()  # it may have been chosen from what others claim here
        return await self._round(None, states)

    async def start_only(self, task_ids: Sequence[str]) -> list[Started]:
        """One round for these tasks alone, as many as there is room for: what `starter.py start` does."""
        return await self._round(task_ids, CLAIMABLE)

    async def _work(self, state: TaskState) -> None:
        """Round after round for tasks in one state, whatever one of them fails by."""
        wake, failures = self._wakes[state], 0
        while not self._draining.is_set():
            wake.clear()
            try:
                asked_at = monotonic()
                due_in = await self._claims.next_due(self._definitions, [state])  # before the claim: none is missed
                started = await self.run_once([state])
            except Exception as error:
                if isinstance(error, Unreachable):
                    log.warning("out of reach", error=str(error), claims=state)
                else:
                    log.exception("round failed", claims=state)
                failures += 1
                await self._back_off(failures)
                continue
            failures = 0
            if not started:
                await self._sleep(wake, due_in, asked_at)

    async def _round(self, task_ids: Sequence[str] | None, states: Sequence[TaskState]) -> list[Started]:
        async with self._claiming:  # two claims at once would each fill the same free slots
            claims = await self._claims.claim(self._worker, self._definitions, self._slots, task_ids, states=states)
        forward = [c.task.task_id for c in claims if c.task.state is TaskState.PROCESSING]
        loading = asyncio.ensure_future(self._load(forward))
        taken_up = [self._take_up(claim, loading) for claim in claims]
        _, *outcomes = await asyncio.gather(loading, *taken_up, return_exceptions=True)
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                await self._leave(claim, outcome)
        return [o for o in outcomes if isinstance(o, Started)]

    async def _leave(self, claim: Claim, error: BaseException) -> None:
        """Leave a task that can't even be given back to the deadline of its claim; any other error is everybody's."""
        if not is_of_rows(error):
            raise error
        log.error("a claim can't be given back", task_id=claim.task.task_id, error=str(error))

    async def _load(self, task_ids: Sequence[str]) -> dict[str, Record]:
        return await self._orders.load(task_ids) if task_ids else {}

    async def _take_up(self, claim: Claim, loading: asyncio.Future[dict[str, Record]]) -> Started | None:
        """Start what was claimed, if this worker still starts anything and the business record is the task's own."""
        if self._draining.is_set():
            await self._claims.not_started(claim, "the worker is shutting down", pause=AT_ONCE)
            return None
        if claim.task.state is TaskState.COMPENSATING:
            return await self._starter.start(claim, claim.task.as_run({}))  # an undo needs nothing but its log
        try:
            found = (await loading).get(claim.task.task_id)
        except Unreachable as error:
            await self._claims.not_started(claim, str(error), pause=PAUSE)
            raise
        if found is None or found.record is None or found.digest != claim.task.record_digest:
            alert = _missing(claim.task.task_id)
            await self._starter.at_fault(claim, "record_missing", "its business record is not there", alert=alert)
            return None
        return await self._starter.start(claim, claim.task.as_run(found.record))

    async def _back_off(self, failures: int) -> None:
        """After rounds that failed: pause longer and longer, whoever wakes us."""
        most = min(_LONGEST_PAUSE_S, 2.0 ** min(failures, 8))
        pause = most * random.uniform(0.5, 1.0)  # noqa: S311 (jitter)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._draining.wait()

    async def _sleep(self, wake: asyncio.Event, due_in: timedelta | None, asked_at: float) -> None:
        """Until somebody wakes us, the next task is due, or it is time for the poll."""
        most = self._poll if due_in is None else min(self._poll, due_in)
        with suppress(TimeoutError):
            async with asyncio.timeout(asked_at + most.total_seconds() - monotonic()):
                await wake.wait()

    async def _listen(self) -> None:
        """Turn NOTIFY into wake-ups; the slow poll covers for it while the connection is gone."""
        while True:
            try:
                dsn, name = self._store.database.dsn, "dispatcher-listen"
                async with await connect_async(dsn, application_name=name) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self.wake()  # what was told before
                    async for told in connection.notifies():
                        with suppress(ValueError, KeyError):  # anybody may notify, of anything
                            self._wakes[TaskState(told.payload)].set()
            except psycopg.Error as error:
                log.warning("not listening", error=str(error).strip())
            await asyncio.sleep(1)


def _missing(task_id: str) -> str:
    """What a person is told of a task whose business record is lost."""
    return (
        f"task {task_id} was accepted with a business record, and the orders database has none of its own for it: put"
        f" the record back, and it goes on; or `python starter.py compensate {task_id} --reason TEXT` undoes it, unless"
        " it is past its pivot. Others may lack theirs: `python starter.py audit` names those that have begun"
    )
