"""A claim becomes a run at most once: its workflow id is never used a second time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from domain.undo_requests import UndoRequest
from runtime.starts import Started
from store.breakers import CircuitBreakers
from testing.waiting import PATIENCE_S, eventually
from tests.integration.store_bench import BREAKER, StoreBench
from tests.integration.test_half_submitted import dispatcher


@pytest.fixture
async def run(client: Client, task_id: str) -> AsyncIterator[WorkflowHandle[object, object]]:
    """The first attempt's run; no worker of a later test may find it."""
    handle: WorkflowHandle[object, object] = client.get_workflow_handle(f"order/{task_id}/1")
    yield handle
    with suppress(RPCError):
        await handle.terminate()


def forget_the_claim(store: StoreBench, task_id: str) -> None:
    """The store is as it was before, as after a backup was restored: the next claim has the same epoch."""
    store.owner("DELETE FROM event WHERE kind = 'claimed'")
    store.owner(
        "UPDATE task SET state = 'Pending', epoch = 0, locked_by = NULL, complete_by = NULL, last_event = 2"
        " WHERE task_id = %(id)s",
        id=task_id,
    )


@pytest.mark.failure(9, 10)
@pytest.mark.demand("B1", "B10")
@pytest.mark.parametrize("over", [False, True], ids=["while its run is open", "when its run is over"])
async def test_run_that_this_claim_did_not_start_is_not_adopted(
    store: StoreBench, client: Client, run: WorkflowHandle[object, object], task_id: str, over: bool
) -> None:
    await store.submitted(task_id)
    starter = dispatcher(store, client)
    (first,) = await starter.run_once()
    if over:
        await run.terminate()
    forget_the_claim(store, task_id)
    assert await starter.run_once() == []
    assert (await run.describe()).run_id == first.run_id, "no second run was made of that id"
    row = store.row(task_id)
    assert (row["state"], row["locked_by"]) == ("Pending", None)
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "foreign_run"
    assert str(first.run_id) in alert["message"]
    (second,) = await starter.run_once()
    assert second.workflow_id == f"order/{task_id}/2"
    await client.get_workflow_handle(second.workflow_id).terminate()


class Deaf:
    """Temporal's client, to which the answer to the first start is lost, so that it starts again."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def start_workflow(self, *args: Any, **more: Any) -> WorkflowHandle[Any, Any]:
        """Start it twice."""
        await self._client.start_workflow(*args, **more)
        return await self._client.start_workflow(*args, **more)

    def get_workflow_handle(self, workflow_id: str) -> WorkflowHandle[Any, Any]:
        """As the client's."""
        return self._client.get_workflow_handle(workflow_id)


@pytest.mark.failure(9)
@pytest.mark.demand("B1", "B10")
async def test_run_that_this_claim_has_started_before_is_its_own(
    store: StoreBench, client: Client, run: WorkflowHandle[object, object], task_id: str
) -> None:
    await store.submitted(task_id)
    deaf: Any = Deaf(client)
    started = await dispatcher(store, deaf).run_once()
    assert started == [Started(task_id, run.id, (await run.describe()).run_id)]
    assert store.row(task_id)["locked_by"] == run.id
    assert store.owner("SELECT * FROM alert") == []


# --- when it looks --------------------------------------------------------------------------------------------


@asynccontextmanager
async def dispatching(store: StoreBench, client: Client, **terms: Any) -> AsyncIterator[None]:
    """A dispatcher that hardly ever polls, at work."""
    hourly = {"poll_interval": timedelta(hours=1), **terms}
    working = asyncio.create_task(dispatcher(store, client, **hourly).run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


LATE = "SELECT extract(epoch FROM e.at - t.not_before)::float8 AS s FROM event AS e JOIN task AS t USING (task_id)"


async def claimed(store: StoreBench, task_id: str) -> float:
    """Wait until a task is claimed; how many seconds after it was due that was."""
    statement = f"{LATE} WHERE e.kind = 'claimed' AND t.task_id = %(id)s ORDER BY e.number DESC LIMIT 1"

    async def there() -> bool:
        return bool(store.owner(statement, id=task_id))

    await eventually(there)
    return float(store.owner(statement, id=task_id)[0]["s"])


def is_due_in(store: StoreBench, task_id: str, seconds: float) -> None:
    """Let a task wait for so long; nobody is told."""
    later = "UPDATE task SET not_before = clock_timestamp() + make_interval(secs => %(s)s) WHERE task_id = %(id)s"
    store.owner(later, id=task_id, s=seconds)


AT_ONCE_S = 1.0
"""Far less than the hour until the poll, and more than a busy machine needs."""


async def test_dispatcher_that_is_woken_as_it_is_cancelled_ends(store: StoreBench, client: Client) -> None:
    at_rest = dispatcher(store, client, poll_interval=timedelta(hours=1))
    working = asyncio.create_task(at_rest.run())

    async def sleeps() -> bool:
        return all(wake._waiters for wake in at_rest._wakes.values())

    await eventually(sleeps)
    at_rest.wake()
    working.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(working, return_exceptions=True)


@pytest.mark.failure(74)
@pytest.mark.demand("B1", "B9")
async def test_task_is_claimed_when_due_and_not_at_the_next_poll(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await store.submitted(task_id)
    is_due_in(store, task_id, 0.5)
    async with dispatching(store, client):
        assert 0 <= await claimed(store, task_id) < AT_ONCE_S


@pytest.mark.failure(74)
@pytest.mark.demand("B1", "A6")
async def test_task_is_claimed_as_soon_as_it_is_confirmed(store: StoreBench, client: Client, task_id: str) -> None:
    async with dispatching(store, client):
        await store.submitted(f"{task_id}-1")
        await claimed(store, f"{task_id}-1")
        await store.submitted(task_id)
        assert 0 <= await claimed(store, task_id) < AT_ONCE_S
    assert store.row(task_id)["epoch"] == 1


@pytest.mark.demand("B1")
async def test_task_is_claimed_once_confirmed_without_any_notification(
    store: StoreBench, client: Client, task_id: str
) -> None:
    async with dispatching(store, client):
        await store.submitted(f"{task_id}-1")
        await claimed(store, f"{task_id}-1")
        for word in ("nonsense", "Processed"):
            store.owner("SELECT pg_notify('task_claimable', %(word)s)", word=word)
        await store.submitted(task_id)
        assert 0 <= await claimed(store, task_id) < AT_ONCE_S


@pytest.mark.failure(74)
@pytest.mark.demand("B1", "B9")
async def test_task_released_by_another_is_claimed_when_its_pause_is_over(
    store: StoreBench, client: Client, task_id: str
) -> None:
    hold = await store.begun(task_id)
    async with dispatching(store, client):
        await store.submitted(f"{task_id}-1")
        await claimed(store, f"{task_id}-1")
        await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=timedelta(seconds=0.5))

        async def again() -> bool:
            return store.row(task_id)["epoch"] == 2

        await eventually(again)
        assert 0 <= await claimed(store, task_id) < AT_ONCE_S


class Counting(CircuitBreakers):
    """Counts the rounds of a dispatcher."""

    rounds = 0

    async def lease(self, loaded: Any) -> bool:
        """As the services'."""
        self.rounds += 1
        return await super().lease(loaded)


@pytest.mark.failure(74)
@pytest.mark.demand("B1", "C8")
async def test_dispatcher_does_not_spin_while_what_is_due_is_held_back(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await store.breakers.force("stock", "open", requester="anna", reason="their maintenance")
    await store.submitted(task_id)
    counting = Counting(store.database, BREAKER)
    async with dispatching(store, client, breakers=counting):
        other = await store.submitted(f"{task_id}-2", "provisioning")
        await claimed(store, other)
        before = counting.rounds
        is_due_in(store, task_id, -1)
        await store.database.rows("SELECT pg_sleep(0.3)")
        assert counting.rounds - before <= 4
    assert store.row(task_id)["epoch"] == 0


@pytest.mark.demand("B1", "C8")
async def test_undo_that_may_probe_a_service_is_claimed_at_once(
    store: StoreBench, client: Client, task_id: str
) -> None:
    """Whichever of the two sides of the dispatcher has looked at the service first."""
    await store.begun(task_id)
    await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="by mistake"))
    for n in range(BREAKER.failures):
        await store.breakers.failed("stock", task_id, "503", report=str(n))
    store.breakers._looked_at = float("-inf")
    async with dispatching(store, client):

        async def probes() -> bool:
            return store.row(task_id)["epoch"] == 2

        await eventually(probes)
