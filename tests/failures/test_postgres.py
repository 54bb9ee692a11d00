"""PostgreSQL dies, or comes back older than the world: nothing that was acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from devstack.servers.postgres import EmbeddedPostgres
from devstack.stack.environment import SERVICES
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from tests.failures.servers import copied, ended, kill, own_postgres, submitted


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of this file's own."""
    with own_postgres(tmp_path_factory.mktemp("own-postgres")) as server:
        yield server


@pytest.fixture
def databases(templates: EmbeddedPostgres) -> Databases:
    """Fresh databases on it."""
    return Databases(templates)


@pytest.mark.failure(46)
@pytest.mark.demand("A2", "B9", "C2")
async def test_no_acknowledged_order_is_lost_although_postgres_keeps_dying(
    bench: Bench, simulators: Simulators, templates: EmbeddedPostgres, order: dict[str, Any], task_id: str
) -> None:
    for service in ("stock", "payments", "shipping"):
        simulators.fault(service, "latency", latency_ms=500, match={"task_id": f"{task_id}-0"})
    async with bench.worker():
        ids = await submitted(bench, order, task_id, 4)
        for step in ("stock", "charge", "ship"):
            await bench.step_reached(ids[0], step, StepState.RUNNING)
            ids += await submitted(bench, order, f"{task_id}-{step}", 2)
            meanwhile = asyncio.create_task(submitted(bench, order, f"{task_id}-{step}-meanwhile", 2))
            kill(templates)
            await asyncio.to_thread(templates.start)
            ids += await meanwhile
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert [simulators.live(i) for i in ids] == [FULL] * len(ids)


@pytest.mark.failure(61)
@pytest.mark.demand("C2", "C14", "F5")
async def test_store_that_is_restored_to_an_earlier_time_repeats_no_effect(
    bench: Bench,
    simulators: Simulators,
    templates: EmbeddedPostgres,
    databases: Databases,
    tmp_path: Path,
    order: dict[str, Any],
    task_id: str,
) -> None:
    """After the backup the world went on: it finished two orders, one of which had not begun, and undid a third."""
    finished, undone, unbegun = ids = [f"{task_id}-{word}" for word in ("finished", "undone", "unbegun")]
    for i in ids:
        await bench.submit(order, i)
    bench.postpone(unbegun)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, services=set(SERVICES) - {"shipping"}):
        for i in (finished, undone):
            await bench.step_reached(i, "ship", StepState.RUNNING)
        earlier = await asyncio.to_thread(copied, templates, tmp_path / "earlier")
        async with bench.worker(Role.AGENTS, services={"shipping"}):
            due_now(databases, unbegun)
            assert await ended(bench, ids) == {TaskState.PROCESSED}
            await undo(bench, undone)
    effects = [simulators.ledger(s, i)["effects"] for s in SERVICES for i in ids]
    kill(templates)
    await asyncio.to_thread(earlier.start)
    try:
        due_now(databases, unbegun)
        # workflow ids of the time that was lost have runs: a claim of one is given back, and the next one is made
        impatient = bench.settings.model_copy(update={"claim_within": timedelta(seconds=1)})
        async with bench.worker(settings=impatient):
            for i in ids:
                await bench.expire(i)
            assert await bench.settled_with_sweeps(finished) is TaskState.PROCESSED
            assert await bench.settled_with_sweeps(unbegun) is TaskState.PROCESSED
            assert await bench.settled_with_sweeps(undone) is TaskState.ERROR
            assert [a.kind for a in (await bench.page(undone)).alerts] == ["task_in_error"]
            await undo(bench, undone)
        assert [simulators.ledger(s, i)["effects"] for s in SERVICES for i in ids] == effects
        assert [simulators.live(i) for i in ids] == [FULL, {"mail": 1}, FULL]
    finally:
        await asyncio.to_thread(earlier.delete_data)
        await asyncio.to_thread(templates.start)


def due_now(databases: Databases, task_id: str) -> None:
    """A task that waits may be claimed now."""
    with psycopg.connect(databases.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE task SET not_before = clock_timestamp() WHERE task_id = %s", (task_id,))


async def undo(bench: Bench, task_id: str) -> None:
    """Ask for undo, and wait until it is done."""
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="returned"))
    assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
