"""Runs whose histories are kept: each scenario ends in the states that its name says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from domain.ids import idempotency_key, undo_request_id
from domain.messages import Completed
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from store.inbox import InboxStore
from testing.bench import Bench
from testing.simulators import Simulators

Scenario = Callable[[Bench, Simulators, dict[str, Any], dict[str, Any], str], Awaitable[None]]


async def order_processed(bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str) -> None:
    """Nothing fails."""
    await bench.submit(order, task)
    assert await bench.settled(task) is TaskState.PROCESSED


async def order_declined(bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str) -> None:
    """A permanent fault, then an undo run."""
    order["card_token"] = "tok_declined"
    await bench.submit(order, task)
    assert await bench.settled(task) is TaskState.COMPENSATED


async def order_retried(bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str) -> None:
    """The allowance is spent, the Supervisor asks for a second attempt: it loads what the first has done."""
    sims.fault("shipping", "error", times=3, match={"task_id": task})
    await bench.submit(order, task)
    assert await bench.settled_with_sweeps(task) is TaskState.PROCESSED


async def order_undone(bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str) -> None:
    """Undo by signal to a running attempt, which lets another workflow ask."""
    sims.fault("shipping", "latency", latency_ms=700, match={"task_id": task, "undo": False})
    await bench.submit(order, task)
    await bench.step_reached(task, "ship", StepState.RUNNING)
    handle = bench.client.get_workflow_handle(str((await bench.page(task)).task.locked_by))
    await handle.signal("compensate", {"reason": "replay"})
    assert await bench.reached(task, TaskState.COMPENSATED) is TaskState.COMPENSATED


async def order_cancelled(bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str) -> None:
    """Cancelled from outside: an undo request."""
    sims.fault("shipping", "latency", latency_ms=700, match={"task_id": task, "undo": False})
    await bench.submit(order, task)
    await bench.step_reached(task, "ship", StepState.RUNNING)
    await bench.client.get_workflow_handle(str((await bench.page(task)).task.locked_by)).cancel()
    assert await bench.reached(task, TaskState.COMPENSATED) is TaskState.COMPENSATED


async def order_refund_refused(
    bench: Bench, sims: Simulators, order: dict[str, Any], _: dict[str, Any], task: str
) -> None:
    """An undo that fails, and is finished when asked for again."""
    sims.fault("payments", "refuse", match={"undo": True, "task_id": task})
    await bench.submit(order, task)
    assert await bench.settled(task) is TaskState.PROCESSED
    for state in (TaskState.COMPENSATION_FAILED, TaskState.COMPENSATED):
        await bench.client.start_workflow(
            "CompensationRequest",
            id=undo_request_id("order", task),
            task_queue="scheduler",
            start_signal="compensate",
            start_signal_args=["replay"],
        )
        assert await bench.reached(task, state) is state
        sims.heal()


async def provisioning_processed(
    bench: Bench, sims: Simulators, _: dict[str, Any], machine: dict[str, Any], task: str
) -> None:
    """A graph with a join, and an answer that comes later."""
    await bench.submit(machine, task, "provisioning")
    assert await bench.settled(task) is TaskState.PROCESSED


async def provisioning_answered_unheard(
    bench: Bench, sims: Simulators, _: dict[str, Any], machine: dict[str, Any], task: str
) -> None:
    """An answer that comes later, of which Temporal does not hear: the attempt looks into the inbox."""
    key = idempotency_key(task, "machine", 0)
    await bench.submit(machine, task, "provisioning")
    await bench.sent(sims, "cloud", key)
    answer = Completed(result={"machine_id": "m-1", "ip": "10.0.0.1"}, calls=None)
    assert await InboxStore(bench.stores.store.database).put("replay", key, answer)
    assert await bench.settled(task) is TaskState.PROCESSED


async def provisioning_undone(
    bench: Bench, sims: Simulators, _: dict[str, Any], machine: dict[str, Any], task: str
) -> None:
    """Undo while two steps run side by side."""
    sims.fault("cloud", "latency", latency_ms=700, match={"task_id": task, "undo": False})
    await bench.submit(machine, task, "provisioning")
    await sims.called("cloud", task)
    await bench.stores.store.requests.undo(UndoRequest(task_id=task, requester="test", reason="replay"))
    assert await bench.reached(task, TaskState.COMPENSATED) is TaskState.COMPENSATED


async def brittle_fails(bench: Bench, sims: Simulators, _: dict[str, Any], __: dict[str, Any], task: str) -> None:
    """A definition's function raises at the last step, then an undo run."""
    await bench.submit({"fails": "tell"}, task, "brittle")
    assert await bench.reached(task, TaskState.COMPENSATED) is TaskState.COMPENSATED


SCENARIOS: dict[str, Scenario] = {
    f.__name__: f
    for f in (
        order_processed,
        order_declined,
        order_retried,
        order_undone,
        order_cancelled,
        order_refund_refused,
        provisioning_processed,
        provisioning_answered_unheard,
        provisioning_undone,
        brittle_fails,
    )
}

WITHOUT_CALLBACKS = frozenset({provisioning_answered_unheard.__name__})
"""Scenarios in which nobody takes the answers that come later."""
