"""Runs that somebody starts by hand, and runs that meet a worker without their definition: nobody is fooled by them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from definitions import registry
from domain.attempts import RunInput, StepView, UndoView
from domain.definition import Registry
from domain.ids import undo_request_id
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.dispatcher import Dispatcher
from runtime.roles import Role
from runtime.temporal import queue_of
from store.state_store import StateStore
from store.submission import SubmissionDesk
from testing.bench import Bench
from testing.definitions.gift import GIFT
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.workers import WorkerProcess

QUEUE = queue_of("order", 1)
MADE_UP = {"SAS_DEFINITIONS": "testing.definitions"}


def forged(task_id: str, epoch: int, record: dict[str, Any], **more: Any) -> RunInput:
    """What somebody makes up who knows the form of an attempt's input."""
    steps = [StepView(name=n, state=StepState.NOT_STARTED, key_generation=0) for n in FULL_STEPS]
    terms = {"task_id": task_id, "definition": "order", "version": 1, "epoch": epoch, "undo": False}
    return RunInput.model_validate({**terms, "record": record, "steps": steps, "nonce": "made up", **more})


FULL_STEPS = ("stock", "charge", "ship", "confirm")


@pytest.fixture
async def by_hand(bench: Bench) -> AsyncIterator[Callable[[RunInput], Awaitable[WorkflowHandle[Any, Any]]]]:
    """Starts a run under the id of an attempt."""
    started: list[WorkflowHandle[Any, Any]] = []

    async def start(run: RunInput) -> WorkflowHandle[Any, Any]:
        name = f"order/{run.task_id}/{run.epoch}"
        started.append(await bench.client.start_workflow("order", run, id=name, task_queue=QUEUE))
        return started[-1]

    yield start
    for handle in started:
        with suppress(RPCError):
            await handle.terminate()


@pytest.mark.failure(10)
@pytest.mark.demand("B1", "B2", "B6")
async def test_run_started_by_hand_under_a_claimed_id_changes_nothing(
    bench: Bench,
    simulators: Simulators,
    order: dict[str, Any],
    task_id: str,
    by_hand: Callable[[RunInput], Awaitable[WorkflowHandle[Any, Any]]],
) -> None:
    """It comes between the claim and the start: the claim's own run never comes."""
    await bench.submit(order, task_id)
    await bench.stores.store.claims.claim("dispatcher", [("order", 1)], 1, [task_id])
    cheap = order | {"lines": [{**order["lines"][0], "unit_price_minor": 1}]}
    before = await bench.contents(task_id)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        handle = await by_hand(forged(task_id, 1, cheap))
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert failed.value.cause.type == "Superseded"  # type: ignore[attr-defined]
        assert await bench.contents(task_id) == before
        assert simulators.ledger("stock", task_id)["calls"] == []
        await bench.expire(task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    charges = simulators.ledger("payments", task_id)["effects"]
    assert [e["body"]["amount_minor"] for e in charges] == [2500]


@pytest.mark.failure(10)
@pytest.mark.demand("B1", "B2", "F5")
async def test_undo_started_by_hand_undoes_nothing_and_the_real_one_works(
    bench: Bench,
    simulators: Simulators,
    order: dict[str, Any],
    task_id: str,
    by_hand: Callable[[RunInput], Awaitable[WorkflowHandle[Any, Any]]],
) -> None:
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="cli:ada", reason="late"))
    await bench.stores.store.claims.claim("dispatcher", [("order", 1)], 1, [task_id])
    entry = UndoView(step="charge", action="payments.refund")
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        handle = await by_hand(forged(task_id, 2, {}, undo=True, undo_log=[entry]))
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert simulators.live(task_id) == FULL
        await bench.expire(task_id)
        await bench.sweep()
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    refunds = [e for e in simulators.ledger("payments", task_id)["effects"] if e["undone_at"]]
    assert len(refunds) == 1


@pytest.mark.failure(20, 108)
@pytest.mark.demand("F1")
@pytest.mark.parametrize("given", [[], ["nonsense"]], ids=["no input", "an input that can't be read"])
async def test_undo_asked_of_a_run_that_is_refused_is_passed_on(
    bench: Bench, order: dict[str, Any], task_id: str, given: list[Any]
) -> None:
    """Whatever Temporal took is answered, although the run can't be."""
    await bench.submit(order, task_id)
    bench.postpone(task_id)
    handle = await bench.client.start_workflow(
        "order",
        args=given,
        id=f"order/{task_id}/7",
        task_queue=QUEUE,
        start_signal="compensate",
        start_signal_args=[{"requester": "supervisor", "reason": "customer called"}],
    )
    async with bench.worker(Role.SCHEDULER):
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await bench.client.get_workflow_handle(undo_request_id("order", task_id)).result())["verdict"] == (
            "accepted"
        )
    (asked,) = [e for e in (await bench.page(task_id)).events if e.kind == "undo_requested"]
    assert (asked.actor, asked.detail["reason"]) == ("signal:supervisor", "customer called")
    assert asked.detail["sender"] == bench.client.identity, "as Temporal knows it, whatever was said"


@pytest.mark.failure(108)
@pytest.mark.demand("F1", "G4")
@pytest.mark.parametrize("kind", ["order", "CompensationRequest"])
async def test_signal_without_a_name_is_recorded_under_its_sender(
    bench: Bench, task_id: str, order: dict[str, Any], kind: str
) -> None:
    await bench.submit(order, task_id)
    bench.postpone(task_id)
    end, queue = ("7", QUEUE) if kind == "order" else ("undo", "scheduler")
    await bench.client.start_workflow(
        kind, id=f"order/{task_id}/{end}", task_queue=queue, start_signal="compensate", start_signal_args=["late"]
    )
    async with bench.worker(Role.SCHEDULER):
        await bench.reached(task_id, TaskState.COMPENSATED)
    asked = [e.actor for e in (await bench.page(task_id)).events if e.kind == "undo_requested"]
    assert asked == [f"signal:{bench.client.identity}"]


@pytest.mark.failure(88)
@pytest.mark.demand("B4", "H6")
async def test_worker_leaves_runs_of_a_definition_that_it_lacks_to_others(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    """Twenty at once, started by somebody without a worker, while only one of two workers has their definition."""
    await bench.stores.admission.publish(GIFT)
    desk = SubmissionDesk(bench.stores.admission, bench.stores.orders, Registry([GIFT]))
    ids = [f"{task_id}-{n}" for n in range(20)]
    for each in ids:
        message = {"task_id": each, "definition": "gift", "record": {"sku": "TEA-01", "to": "ada@example.com"}}
        await desk.submit(desk.parse(json.dumps(message)))
    dispatcher = Dispatcher(
        bench.client,
        StateStore(bench.stores.store.database, claim_within=timedelta(hours=1)),
        bench.stores.orders,
        bench.stores.breakers,
        Registry([GIFT]),
        worker="no worker",
        slots=len(ids),
        eager=False,
    )
    assert registry().newest("gift") is None, "this process lacks it"
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await dispatcher.start_only(ids)
        with WorkerProcess(bench.settings, roles="scheduler", more=MADE_UP):
            await bench.settled(*ids)
    pages = [await bench.page(each) for each in ids]
    assert {(p.task.state, p.task.epoch) for p in pages} == {(TaskState.PROCESSED, 1)}


@pytest.mark.failure(88)
@pytest.mark.demand("B4", "F1")
async def test_undo_waits_for_a_worker_that_has_the_definition(bench: Bench, task_id: str) -> None:
    run = forged(task_id, 1, {}).model_copy(update={"version": 99})
    handle = await bench.client.start_workflow(
        "order", run, id=f"order/{task_id}/1", task_queue=QUEUE, start_signal="compensate", start_signal_args=["late"]
    )

    async def failed_a_task() -> bool:
        names = [e.WhichOneof("attributes") for e in (await handle.fetch_history()).events]
        return "workflow_task_failed_event_attributes" in names

    async with bench.worker(Role.SCHEDULER):
        await eventually(failed_a_task)
        status = (await handle.describe()).status
        assert status is not None
        assert status.name == "RUNNING"
    await handle.terminate()
