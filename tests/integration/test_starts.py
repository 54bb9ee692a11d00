"""A claim becomes a run at most once: its workflow id is never used a second time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

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
        "UPDATE task SET state = 'Pending', epoch = 0, locked_by = NULL, complete_by = NULL, last_event = 1"
        " WHERE task_id = %(id)s",
        id=task_id,
    )


@pytest.mark.demand("B1", "B10")
@pytest.mark.parametrize("over", [False, True], ids=["while its run is open", "when its run is over"])
async def test_workflow_id_that_was_used_is_not_used_again(
    store: StoreBench, client: Client, run: WorkflowHandle[object, object], task_id: str, over: bool
) -> None:
    await store.submitted(task_id)
    starter = dispatcher(store, client, timedelta(hours=1))
    (first,) = await starter.run_once()
    if over:
        await run.terminate()
    forget_the_claim(store, task_id)
    assert await starter.run_once() == [Started(task_id, run.id, None)], "held, and no run was made"
    assert (await run.describe()).run_id == first.run_id
