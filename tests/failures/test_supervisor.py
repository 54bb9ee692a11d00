"""The Supervisor dies or stops in the middle of a sweep: what it had written stands, what it had not is done once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from domain.attempts import BeginStep
from domain.states import StepState, TaskState
from runtime.roles import Role
from supervisor.schedule import SCHEDULE_ID
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import submitted
from tests.failures.strange_worker import StrangeWorker


@pytest.fixture(autouse=True)
async def schedule_is_removed(client: Client) -> AsyncIterator[None]:
    """The sweep that was left hanging, and what would start the next one, go with the test."""
    yield
    with suppress(RPCError):
        await client.get_schedule_handle(SCHEDULE_ID).delete()
    with suppress(RPCError):
        await client.get_workflow_handle("supervise").terminate("the test is over")


async def expired(bench: Bench, order: dict[str, Any], prefix: str, count: int) -> list[str]:
    """So many orders whose holders are gone, with a step begun, out of time."""
    ids = await submitted(bench, order, prefix, count)
    store = bench.stores.store
    for claim in await store.claims.claim("a worker that is gone", [("order", 1)], count):
        hold = claim.hold("run-1")
        assert (
            await store.forward.advance(hold, begin=BeginStep(step="stock", within_s=60, calls=3))
        ).grant is not None
    await asyncio.gather(*(bench.expire(i) for i in ids))
    return ids


async def expiries(bench: Bench, ids: list[str]) -> list[int]:
    """How often each task was found expired."""
    pages = [await bench.page(i) for i in ids]
    return [sum(e.kind == "expired" for e in p.events) for p in pages]


@pytest.mark.failure(62)
@pytest.mark.demand("D2", "D4", "D9")
async def test_sweep_goes_on_where_a_killed_supervisor_left_off(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    ids = await expired(bench, order, task_id, 12)
    small_pages = bench.settings.model_copy(update={"sweep_page": 5})
    with StrangeWorker(small_pages, "die_after_a_page", roles="supervisor") as victim:
        await victim.died()
    assert sorted(await expiries(bench, ids)) == [0] * 7 + [1] * 5
    report = await bench.sweep()
    assert report.changed == 7
    assert await expiries(bench, ids) == [1] * 12


@pytest.mark.failure(64)
@pytest.mark.demand("D5", "D9")
async def test_supervisor_frozen_before_its_write_evicts_no_new_holder(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, tmp_path: Path
) -> None:
    wrote = tmp_path / "wrote"
    (expired_one,) = await expired(bench, order, task_id, 1)
    simulators.fault("shipping", "latency", latency_ms=1_500, match={"task_id": expired_one})
    with StrangeWorker(
        bench.settings, "stop_before_writing", roles="supervisor", more={"WROTE": str(wrote)}
    ) as stopped:
        await stopped.stopped()
        assert (await bench.sweep()).changed == 1
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            await bench.step_reached(expired_one, "ship", StepState.RUNNING)
            holder = (await bench.page(expired_one)).task.locked_by
            stopped.resume()
            await eventually(lambda: asyncio.to_thread(wrote.exists))
            assert (await bench.page(expired_one)).task.locked_by == holder
            assert await bench.settled(expired_one) is TaskState.PROCESSED
    assert await expiries(bench, [expired_one]) == [1]
    assert simulators.live(expired_one) == FULL
