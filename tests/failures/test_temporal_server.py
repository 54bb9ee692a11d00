"""Temporal dies, is away, or loses all it knew, with tasks at work: the state store brings each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from devstack.servers.temporal import EmbeddedTemporal
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import ended, kill, own_temporal, submitted
from tests.failures.test_temporal_ui import in_the_middle, violations

pytestmark = pytest.mark.filterwarnings("ignore:Cannot find activity to cancel:UserWarning")
"""The SDK says so of a local activity that ended while its run was forgotten; here, a warning would end the worker."""


@pytest.fixture(scope="module")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTemporal]:
    """A Temporal server of this file's own."""
    with own_temporal(tmp_path_factory.mktemp("own-temporal")) as server:
        yield server


async def at_work(bench: Bench, simulators: Simulators, order: dict[str, Any], prefix: str, count: int) -> list[str]:
    """So many orders, each waiting for its shipment."""
    simulators.fault("shipping", "latency", latency_ms=1_500, times=count, match={"task_id": f"{prefix}*"})
    ids = await submitted(bench, order, prefix, count)
    await asyncio.gather(*(bench.step_reached(i, "ship", StepState.RUNNING) for i in ids))
    return ids


@pytest.mark.failure(40)
@pytest.mark.demand("B9", "C2")
async def test_orders_at_work_end_although_temporal_is_killed(
    bench: Bench, simulators: Simulators, temporal_server: EmbeddedTemporal, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        ids = await at_work(bench, simulators, order, task_id, 8)
        kill(temporal_server)
        await asyncio.to_thread(temporal_server.start)
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert 1 in [(await bench.page(i)).task.epoch for i in ids], "runs that were at work have gone on"
    assert [simulators.live(i) for i in ids] == [FULL] * 8


@pytest.mark.failure(41)
@pytest.mark.demand("A1", "B1")
async def test_orders_submitted_while_temporal_is_away_are_done_once_later(
    bench: Bench, simulators: Simulators, temporal_server: EmbeddedTemporal, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        kill(temporal_server)
        (first,) = await submitted(bench, order, f"{task_id}-first", 1)

        async def given_back() -> bool:
            return any(e.kind == "released" for e in (await bench.page(first)).events)

        await eventually(given_back)
        ids = [first, *await submitted(bench, order, task_id, 9)]
        await asyncio.to_thread(temporal_server.start)
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert [simulators.live(i) for i in ids] == [FULL] * 10
    assert [simulators.calls("payments", i) for i in ids] == [1] * 10
    assert [(await bench.page(i)).task.failure_count for i in ids] == [0] * 10


@pytest.mark.failure(45)
@pytest.mark.demand("B2", "D1", "D2", "F11")
async def test_workers_give_an_emptied_temporal_new_attempts_and_schedules(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    temporal_server: EmbeddedTemporal,
    order: dict[str, Any],
    task_id: str,
) -> None:
    """No sweep by hand here: the workers themselves notice that supervision has stopped, and set it up again."""
    async with bench.worker(*Role):
        await in_the_middle(bench, simulators, order, undone := f"{task_id}-undone", "refund")
        ids = [*await at_work(bench, simulators, order, task_id, 6), undone]
        done, *rest = ids[:6]
        before = {i: (await bench.page(i)).task.epoch for i in ids}
        kill(temporal_server)
        await asyncio.to_thread(temporal_server.delete_data)
        await asyncio.to_thread(temporal_server.start)
        for i in ids:
            await bench.expire(i)
        states = [await bench.settled(i) for i in ids]
        assert states == [TaskState.PROCESSED] * 6 + [TaskState.COMPENSATED]
        await bench.stores.store.requests.undo(UndoRequest(task_id=done, requester="test", reason="returned"))
        assert await bench.reached(done, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert [simulators.live(i) for i in rest] == [FULL] * 5
    assert simulators.live(done) == {"mail": 1}
    after = {i: (await bench.page(i)).task.epoch for i in (*rest, undone)}
    assert all(after[i] > before[i] for i in after)
    assert simulators.live(undone) == {"mail": 1}
    assert await violations(databases, simulators) == []
