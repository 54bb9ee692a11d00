"""An undo whose run is taken away in the middle of any of its entries is finished, each entry once, in order (F11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.states import TaskState
from domain.undo_requests import UndoRequest
from testing.bench import Bench
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.acceptance.test_compensation import temporal, undone_in_reverse
from tests.workers import WorkerProcess

UNDOS = {"ship": "shipping", "charge": "payments", "stock": "stock"}
"""Entries of the undo log of an order, last begun first, and the service of each."""


async def in_the_middle_of(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, service: str
) -> str:
    """An order that is being undone, and whose undo at this service is being worked on; its run."""
    match = {"task_id": task_id, "undo": True}
    simulators.fault(service, "latency", latency_ms=4_000, times=1, match=match)
    await bench.submit(order, task_id)
    assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))

    async def called() -> bool:
        return simulators.calls(service, task_id, undo=True) > 0

    await eventually(called)
    return str((await bench.page(task_id)).task.locked_by)


async def is_undone_once(bench: Bench, simulators: Simulators, task_id: str, *, interrupted: str) -> None:
    """Every entry was undone once, in order and under one key: only what was interrupted got more than one call."""
    assert simulators.live(task_id) == {"mail": 1}
    undone = [e.detail["undone"] for e in (await bench.page(task_id)).events if "undone" in e.detail]
    assert undone == list(UNDOS)
    calls = undone_in_reverse(simulators, task_id)
    assert list(dict.fromkeys(calls)) == list(UNDOS.values())
    finished = [service for service in UNDOS.values() if service != interrupted]
    assert [calls.count(service) for service in finished] == [1] * len(finished), calls
    keys = {c["key"] for s in UNDOS.values() for c in simulators.ledger(s, task_id)["calls"] if c["undo"]}
    assert keys == {f"{task_id}:{step}:undo-0" for step in UNDOS}


@pytest.mark.failure(93)
@pytest.mark.demand("F11", "F3", "G6", "B9")
@pytest.mark.parametrize("action", ["terminate", "reset", "cancel"])
async def test_another_run_finishes_an_undo_lost_at_any_entry(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, action: str
) -> None:
    ids = {service: f"{task_id}-{service}" for service in UNDOS.values()}
    more = {"reset": ("--reason", "test", "--type", "FirstWorkflowTask"), "terminate": ("--reason", "test")}
    async with bench.worker():
        runs = await asyncio.gather(*(in_the_middle_of(bench, simulators, order, t, s) for s, t in ids.items()))
        await asyncio.gather(
            *(temporal(bench, "workflow", action, "--workflow-id", run, *more.get(action, ())) for run in runs)
        )
        await asyncio.gather(*(bench.expire(t) for t in ids.values()))
        ended = {s: await bench.settled_with_sweeps(t) for s, t in ids.items()}
        assert ended == dict.fromkeys(ids, TaskState.COMPENSATED)
    for service, task in ids.items():
        assert (await bench.page(task)).task.epoch >= 3
        await is_undone_once(bench, simulators, task, interrupted=service)


@pytest.mark.failure(93)
@pytest.mark.demand("F11", "F3", "B9")
@pytest.mark.parametrize(
    ("point", "interrupted"),
    [("after:undo_call:ship", "shipping"), ("before:undo_call:charge", ""), ("after:undo_call:stock", "stock")],
)
async def test_undo_whose_worker_dies_at_any_entry_is_finished_by_another(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, point: str, interrupted: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))
    with WorkerProcess(bench.settings, kill_at=point) as victim:
        await victim.died()
    await bench.expire(task_id)
    async with bench.worker():
        assert await bench.settled_with_sweeps(task_id) is TaskState.COMPENSATED
    assert (await bench.page(task_id)).task.epoch >= 3
    await is_undone_once(bench, simulators, task_id, interrupted=interrupted)
