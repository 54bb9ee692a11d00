"""Temporal is away, no worker runs, no service answers: what is open, what is left to undo, and how it is finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from devstack.processes.ports import free_port
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.settings import Settings
from testing.bench import Bench
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.acceptance.test_cli import Result, nowhere, starter

EVIDENCE = ("--done-by-hand", "--evidence", "seen in their console", "--reason", "nothing answers", "--by", "anna")


async def undo_that_was_cut_off(bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str) -> None:
    """An order whose shipment is undone, and whose worker was gone in the middle of the refund."""
    simulators.fault("payments", "error", status=503, match={"undo": True, "task_id": task_id})
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))

        async def called() -> bool:
            return simulators.calls("payments", task_id, undo=True) > 0

        await eventually(called)


@pytest.mark.demand("F13", "F9", "F10", "D1")
async def test_half_finished_undo_is_completed_from_the_state_store_alone(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    await undo_that_was_cut_off(bench, simulators, order, task_id)
    await bench.submit(order, f"{task_id}-new")
    gone = f"127.0.0.1:{free_port()}"
    orders = nowhere(settings).database_url
    alone = settings.model_copy(update={"services": {}, "orders_url": orders, "admin_orders_url": orders})

    async def command(*arguments: str) -> Result:
        result = await starter(alone, *arguments, TEMPORAL_ADDRESS=gone)
        assert result.code == 0, result.err
        return result

    await bench.expire(task_id)
    await command("supervise")
    still_open, to_undo, shown = await asyncio.gather(
        command("list", "--open"), command("list", "--undo", "-o", "json"), command("show", task_id)
    )
    assert {tuple(line.split()[i] for i in (0, 3)) for line in still_open.out.splitlines()[1:]} == {
        (task_id, "Compensating"),
        (f"{task_id}-new", "Pending"),
    }
    (task,) = to_undo.data
    assert [(e["step"], e["outcome"]) for e in task["undo_log"]] == [
        ("ship", "undone"),
        ("charge", "being undone"),
        ("stock", "not tried"),
    ]
    assert "next: its undo is claimable" in shown.out

    for step, left in (("charge", "stock"), ("stock", "nothing")):
        repaired = await command("repair", task_id, step, *EVIDENCE)
        assert f"step {step} is closed by hand; left to undo: {left}" in repaired.out
    ended = await bench.page(task_id)
    assert ended.task.state is TaskState.COMPENSATED
    assert {e.step: e.state for e in ended.undo_log} == {
        "ship": "Undone",
        "charge": "ClosedByHand",
        "stock": "ClosedByHand",
    }
    assert {t.task_id for t in await bench.reads.newest_tasks(states=[TaskState.COMPENSATED])} == {task_id}


@pytest.mark.demand("F13", "F1", "A8")
async def test_undo_request_needs_the_state_store_only_and_no_cap(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.submit(order, f"{task_id}-new")
    nobody = nowhere(settings).database_url
    alone = settings.model_copy(update={"orders_url": nobody, "max_pending": 1, "max_in_flight": 1})
    asked = await starter(
        alone,
        *("compensate", task_id, "--reason", "by mistake", "--by", "anna"),
        TEMPORAL_ADDRESS=f"127.0.0.1:{free_port()}",
    )
    assert asked.code == 0, asked.err
    assert (await bench.page(task_id)).events[-1].actor == "cli:anna"
    async with bench.worker():
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
