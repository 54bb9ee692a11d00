"""Undo: asked for in every state, by every way of asking, in reverse order, and what happens when it fails itself."""

from __future__ import annotations

import asyncio
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from domain.states import StepState, TaskState, UndoState
from domain.undo_requests import UndoRequest
from testing.bench import Bench
from testing.simulators import Simulators

TEMPORAL = Path(sysconfig.get_path("scripts")) / "temporal"


async def temporal(bench: Bench, *arguments: str) -> str:
    """Run the plain `temporal` command line against the test server; its output, errors included."""
    address = bench.client.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        str(TEMPORAL),
        *arguments,
        "--address",
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


async def signal_with_start(bench: Bench, task_id: str, *payload: str, definition: str = "order") -> None:
    """Ask for undo as a person would, with Temporal's own tool; works in every state."""
    await temporal(
        bench,
        *("workflow", "signal-with-start", "--type", "CompensationRequest", "--task-queue", "scheduler"),
        *("--workflow-id", f"{definition}/{task_id}/undo", "--signal-name", "compensate"),
        *(x for p in payload for x in ("--signal-input", p)),
    )


def undone_in_reverse(simulators: Simulators, task_id: str) -> list[str]:
    """Services in the order in which they took an undo."""
    calls = [
        (c["received_at"], service)
        for service in ("stock", "payments", "shipping", "cloud")
        for c in simulators.ledger(service, task_id)["calls"]
        if c["undo"]
    ]
    return [service for _, service in sorted(calls)]


@pytest.mark.demand("F1", "F3", "G12")
@pytest.mark.parametrize(
    "payload",
    [
        (),
        ('"the customer called"',),
        ('{"reason": "the customer called", "requester": "ops"}',),
        ("[1, 2, 3]",),
        ('{"reason": 7}',),
        ('"\\u0000"',),
    ],
    ids=["nothing", "text", "object", "a-list", "wrong-type", "nul"],
)
async def test_processed_order_is_undone_in_reverse_by_plain_signal(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, payload: tuple[str, ...]
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await signal_with_start(bench, task_id, *payload)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert undone_in_reverse(simulators, task_id) == ["shipping", "payments", "stock"]
    assert simulators.live(task_id) == {"mail": 1}
    request = next(e for e in (await bench.page(task_id)).events if e.kind == "undo_requested")
    assert request.detail["reason"]


@pytest.mark.demand("F1")
async def test_running_order_is_undone_by_signal_to_its_run(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "error", status=503, match={"undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        locked_by = (await bench.page(task_id)).task.locked_by
        await temporal(bench, "workflow", "signal", "--workflow-id", str(locked_by), "--name", "compensate")
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        with pytest.raises(WorkflowFailureError) as failed:
            await bench.client.get_workflow_handle(str(locked_by)).result()
    assert failed.value.cause.type == "UndoRequested"  # type: ignore[attr-defined]
    assert simulators.live(task_id) == {}
    assert undone_in_reverse(simulators, task_id) == ["shipping", "payments", "stock"]


@pytest.mark.demand("F1")
async def test_pending_order_is_undone_without_a_call(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    bench.postpone(task_id)
    async with bench.worker():
        await signal_with_start(bench, task_id, '"changed my mind"')
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.calls("stock", task_id) == 0


@pytest.mark.demand("F1", "G1")
async def test_order_in_error_is_undone_by_signal(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    order["address"]["line1"] = "Unknown"
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.ERROR
        assert [a.kind for a in (await bench.page(task_id)).alerts] == ["task_in_error"]
        await signal_with_start(bench, task_id)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {}


async def test_request_for_undo_of_an_unknown_task_says_so(bench: Bench, task_id: str) -> None:
    async with bench.worker():
        await signal_with_start(bench, task_id)
        verdict = await bench.client.get_workflow_handle(f"order/{task_id}/undo").result()
    assert verdict["verdict"] == "not_found"
    assert task_id in verdict["message"]


@pytest.mark.demand("F12")
async def test_undo_past_the_pivot_is_refused_and_says_so(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await signal_with_start(bench, task_id, definition="provisioning")
        verdict = await bench.client.get_workflow_handle(f"provisioning/{task_id}/undo").result()
    assert verdict["verdict"] == "past_pivot"
    assert "pivot" in verdict["message"]
    assert (await bench.page(task_id)).task.state is TaskState.PROCESSED
    assert simulators.live(task_id) == {"cloud": 4}


async def test_name_that_is_taken_undoes_the_machine_before_the_pivot(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    machine["name"] = "taken.example"
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {}


@pytest.mark.failure(34)
@pytest.mark.demand("F8", "F9", "E4")
async def test_refused_refund_is_compensation_failed_until_the_service_heals(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """The service repeats its refusal of a key: asked again, it is asked under another one."""
    simulators.fault("payments", "refuse", match={"undo": True, "task_id": task_id})
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await signal_with_start(bench, task_id)
        assert await bench.reached(task_id, TaskState.COMPENSATION_FAILED) is TaskState.COMPENSATION_FAILED
        page = await bench.page(task_id)
        assert [a.kind for a in page.alerts] == ["compensation_failed"]
        states = {e.step: e.state for e in page.undo_log}
        assert states == {"ship": UndoState.UNDONE, "charge": UndoState.FAILED, "stock": UndoState.LOGGED}
        simulators.heal()
        await signal_with_start(bench, task_id, '"payments healed"')
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {"mail": 1}
    assert undone_in_reverse(simulators, task_id).count("shipping") == 1, "a finished entry is never repeated"
    refunds = [(c["key"], c["status"]) for c in simulators.ledger("payments", task_id)["calls"] if c["undo"]]
    assert refunds == [(f"{task_id}:charge:undo-0", 422), (f"{task_id}:charge:undo-1", 200)]


@pytest.mark.failure(32)
@pytest.mark.demand("F4", "F5", "C14")
async def test_charge_that_arrives_after_its_refund_is_refused(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """The reply to the charge is delayed beyond undo: net effect zero, one tombstone, one refusal."""
    simulators.fault("payments", "latency", latency_ms=3_000, match={"task_id": task_id, "undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "charge", StepState.RUNNING)
        await simulators.called("payments", task_id)
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="too slow"))
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        ledger = await bench.refused(simulators, "payments", task_id)
    assert [e for e in ledger["effects"] if e["undone_at"] is None] == []
    assert len(ledger["tombstones"]) == 1
    assert len(ledger["refusals"]) == 1
    assert simulators.live(task_id) == {}


@pytest.mark.failure(15, 26, 33)
@pytest.mark.demand("F4", "C5")
async def test_lost_reply_to_the_charge_then_undo_leaves_nothing(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("payments", "lost_reply", match={"task_id": task_id, "undo": False})
    simulators.fault("payments", "latency", latency_ms=50)
    async with bench.worker():
        await bench.submit(order, task_id)
        await simulators.called("payments", task_id)
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="lost"))
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {}
