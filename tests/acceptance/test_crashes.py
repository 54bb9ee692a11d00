"""Zombies, terminations, late answers: whatever becomes of a run, the order ends once (crashes: `chaos`)."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from domain.attempts import BeginStep
from domain.states import StepState, TaskState
from runtime.roles import Role
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.strange_worker import StrangeWorker
from tests.workers import WorkerProcess


@pytest.mark.failure(93)
@pytest.mark.demand("B2", "B9", "D2", "D6")
async def test_terminated_run_is_recovered_by_one_sweep(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "latency", latency_ms=1_500, match={"task_id": task_id})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        first = str((await bench.page(task_id)).task.locked_by)
        await bench.client.get_workflow_handle(first).terminate("somebody pressed Terminate")
        simulators.heal()
        await bench.expire(task_id)
        report = await bench.sweep()
        assert report.changed == 1
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert len(await bench.attempts(task_id)) == 2
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(5, 14)
@pytest.mark.demand("B2", "C10", "C14")
async def test_attempt_that_wakes_after_its_replacement_changes_no_row(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """The zombie: a real worker, stopped past its deadline, goes on after its replacement has finished."""

    async def answer_is_kept() -> bool:
        return (await bench.page(task_id)).events[-1].kind == "late_answer"

    with StrangeWorker(bench.settings, "stop_with_an_answer", roles="scheduler") as zombie:
        await bench.submit(order, task_id)
        await zombie.stopped()
        await bench.expire(task_id)
        await bench.sweep()
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
        before = await bench.page(task_id)
        zombie.resume()
        await eventually(answer_is_kept)
        await zombie.stop()
    after = await bench.page(task_id)
    assert after.events[:-1] == before.events, "what it had to say is kept, and nothing else"
    told = {"last_event": after.task.last_event, "updated_at": after.task.updated_at}
    assert before.task.model_copy(update=told) == after.task
    assert (after.steps, after.undo_log) == (before.steps, before.undo_log)
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(5, 17)
@pytest.mark.demand("C4", "F2")
async def test_worker_frozen_past_its_deadline_sends_nothing(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """Temporal hands the charge to the poll that the stopped process left open; when it goes on, the time is up."""
    with WorkerProcess(bench.settings, roles="agents") as stopped:
        await stopped.polls(bench.client, "payments")
        stopped.pause()
        async with bench.worker(Role.SCHEDULER):
            await bench.submit(order, task_id)
            await bench.step_reached(task_id, "charge", StepState.RUNNING)
            (attempt,) = await bench.attempts(task_id)
            with pytest.raises(WorkflowFailureError):
                await bench.client.get_workflow_handle(attempt).result()
        stopped.resume()
        await stopped.logged("'activity_id': 'charge'")
    assert simulators.ledger("payments", task_id)["calls"] == []


@pytest.mark.demand("B2")
async def test_writes_of_a_stale_holder_change_nothing(bench: Bench, order: dict[str, Any], task_id: str) -> None:
    await bench.submit(order, task_id)
    store = bench.stores.store
    (claim,) = await store.claims.claim("one", [("order", 1)], 4)
    stale = claim.hold("run-1")
    begin = BeginStep(step="stock", within_s=5, calls=3)
    assert (await store.forward.advance(stale, begin=begin)).grant is not None
    await bench.expire(task_id)
    await bench.sweep()
    before = await bench.contents(task_id)
    reports = [
        await store.forward.advance(stale, done="stock", result={}, calls=1),
        await store.forward.fail(stale, "stock", {"message": "no"}, unknown=False, then="error"),
        await store.steps.give_up(stale, "stock", "no"),
    ]
    assert [r.end for r in reports] == ["Superseded"] * 3
    assert await bench.contents(task_id) == before


@pytest.mark.failure(37)
@pytest.mark.demand("G6", "F1")
async def test_cancelled_run_asks_for_undo(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "latency", latency_ms=1_500, match={"task_id": task_id, "undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        handle = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))
        await handle.cancel()
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert (await handle.describe()).status is WorkflowExecutionStatus.CANCELED
    assert simulators.live(task_id) == {}


@pytest.mark.failure(70)
@pytest.mark.demand("D6", "E1", "E3", "D7")
async def test_failing_service_gets_no_more_calls_than_budget_then_undo(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "error", status=503, match={"task_id": task_id, "undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.COMPENSATED
    page = await bench.page(task_id)
    ship = next(s for s in page.steps if s.name == "ship")
    assert simulators.calls("shipping", task_id) == ship.budget == 9
    assert simulators.live(task_id) == {}
    assert [e.detail["failed"] for e in page.events if e.kind == "expired"] == [["ship"]] * 3


@pytest.mark.failure(14)
@pytest.mark.demand("C3", "C9", "C12")
async def test_unanswered_step_stays_running_past_its_deadline_and_is_recovered(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """The service is slower: its Agent has hung up by then; the row stays Running and expired, then recovers."""

    async def has_expired() -> bool:
        page = await bench.page(task_id)
        return page.task.complete_by is not None and page.task.complete_by < page.now

    simulators.fault("payments", "latency", latency_ms=12_000, match={"task_id": task_id}, times=1)
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "charge", StepState.RUNNING)
        locked_by = str((await bench.page(task_id)).task.locked_by)
        with pytest.raises(WorkflowFailureError) as failed:
            await bench.client.get_workflow_handle(locked_by).result()
        assert failed.value.cause.type == "DeadlinePassed"  # type: ignore[attr-defined]
        await eventually(has_expired)  # the Agent stands down a little earlier, so that there is time to write
        page = await bench.page(task_id)
        charge = next(s for s in page.steps if s.name == "charge")
        assert (page.task.state, charge.state) == (TaskState.PROCESSING, StepState.RUNNING)
        assert page.task.complete_by is not None
        assert page.task.complete_by < page.now
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL


@pytest.mark.demand("G1")
async def test_signal_in_the_middle_of_an_inline_stretch_repeats_no_call(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    """A signal discards the markers of a workflow task; what was done is read back from the store, not called again."""
    for path in ("/cloud/addresses", "/cloud/disks"):
        simulators.fault("cloud", "latency", latency_ms=700, match={"task_id": task_id, "path": path})
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        await simulators.called("cloud", task_id)
        handle = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))
        await handle.signal("something_else", "that means nothing")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    calls = [c["key"] for c in simulators.ledger("cloud", task_id)["calls"]]
    assert sorted(calls) == sorted(set(calls))


@pytest.mark.failure(77)
@pytest.mark.demand("C8", "C9")
async def test_call_of_a_frozen_agent_counts_against_its_service(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """Temporal's timer ends the charge, not the Agent; that it had called is known from its heartbeat."""
    simulators.fault("payments", "latency", latency_ms=30_000, times=1, match={"task_id": task_id, "undo": False})
    with WorkerProcess(bench.settings, roles="agents") as agents:
        async with bench.worker(Role.SCHEDULER):
            await bench.submit(order, task_id)
            await simulators.called("payments", task_id)
            agents.pause()
            (attempt,) = await bench.attempts(task_id)
            with pytest.raises(WorkflowFailureError) as failed:
                await bench.client.get_workflow_handle(attempt).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == "DeadlinePassed"
    rows, _ = await bench.reads.services()
    assert {r.name: (r.failures, r.cause) for r in rows if r.failures} == {"payments": (1, "the deadline came first")}
