"""The Supervisor, or the store, dies in the middle of the work: another goes on, and no failure is counted for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from devstack.servers.postgres import EmbeddedPostgres
from domain.states import StepState, TaskState
from runtime.roles import Role
from supervisor.schedule import SCHEDULE_ID
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import kill, own_postgres
from tests.integration.store_bench import begin
from tests.workers import WorkerProcess


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this file's own, which a test kills; what a killed process has written needs no fsync."""
    with own_postgres(tmp_path_factory.mktemp("own-postgres"), {"fsync": "off"}) as server:
        yield server


@pytest.fixture
def databases(templates: EmbeddedPostgres) -> Databases:
    """Fresh databases on it."""
    return Databases(templates)


async def expired(bench: Bench, order: dict[str, Any], ids: list[str]) -> None:
    """These tasks, whose holders are gone in the middle of the first step."""
    await asyncio.gather(*(bench.submit(order, i) for i in ids))
    for claim in await bench.stores.store.claims.claim("gone", [("order", 1)], len(ids)):
        hold = claim.hold("gone")
        assert (await bench.stores.store.forward.advance(hold, begin=begin("stock"))).grant is not None
    for i in ids:
        await bench.expire(i)


@pytest.mark.failure(62)
@pytest.mark.demand("D1", "D4", "D5", "D9")
async def test_sweep_of_a_killed_worker_is_finished_within_an_interval(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    settings = bench.settings.model_copy(update={"sweep_interval": timedelta(seconds=4), "sweep_page": 3})
    ids = [f"{task_id}-{n}" for n in range(9)]
    await expired(bench, order, ids)

    async def tasks(state: TaskState) -> int:
        return len(await bench.reads.newest_tasks(states={state}))

    try:
        with WorkerProcess(settings, roles=Role.SUPERVISOR, kill_at="after:recover") as victim:
            await victim.died()
        died_at = monotonic()
        assert await tasks(TaskState.PENDING) == 3
        async with bench.worker(Role.SUPERVISOR, settings=settings):

            async def all_recovered() -> bool:
                return await tasks(TaskState.PENDING) == 9

            await eventually(all_recovered)
            assert monotonic() - died_at < 4 + 2
    finally:
        await bench.client.get_schedule_handle(SCHEDULE_ID).delete()
    pages = [await bench.page(i) for i in ids]
    assert [p.task.failure_count for p in pages] == [1] * 9
    assert [sum(e.kind == "expired" for e in p.events) for p in pages] == [1] * 9


@pytest.mark.failure(46)
@pytest.mark.demand("D5", "B9")
async def test_expiry_that_spans_a_killed_postgres_counts_no_failure(
    bench: Bench, simulators: Simulators, templates: EmbeddedPostgres, order: dict[str, Any], task_id: str
) -> None:
    """The store is away for longer than a write is repeated: the attempt ends without having recorded its step."""
    simulators.fault("shipping", "latency", latency_ms=500, match={"task_id": task_id}, times=1)
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        run = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))
        kill(templates)
        with pytest.raises(WorkflowFailureError) as failed:
            await run.result()
        assert failed.value.cause.type == "NotRecorded"  # type: ignore[attr-defined]
    await asyncio.to_thread(templates.start)
    await bench.expire(task_id)
    assert (await bench.sweep()).changed == 1
    page = await bench.page(task_id)
    assert page.task.failure_count == 0
    assert [s.failure_count for s in page.steps] == [0] * 4
    (event,) = [e for e in page.events if e.kind == "expired"]
    assert "not counted" in event.detail["cause"]
    async with bench.worker():
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
