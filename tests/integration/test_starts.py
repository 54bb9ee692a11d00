"""A claim becomes a run at most once: its workflow id is never used a second time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from runtime.dispatcher import Started
from tests.integration.store_bench import StoreBench
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
