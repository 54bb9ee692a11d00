"""What people and platforms do to a running system: deploys, resets, things started by hand, Schedules deleted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from temporalio.client import WorkflowFailureError

from domain.states import StepState, TaskState
from runtime.callbacks.addresses import callback_addresses
from runtime.roles import Role
from runtime.supervision_watch import SupervisionWatch
from runtime.wiring import sweep_settings
from store.database import Database
from store.supervision import Supervision
from supervisor.schedule import SCHEDULE_ID
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.runs import reset
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.workers import WorkerProcess


@pytest.mark.failure(2)
@pytest.mark.demand("B10", "G6")
async def test_worker_told_to_stop_exits_cleanly_and_counts_no_failure(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """It has the Agents of the queued steps; the Scheduler is another worker's, which releases the row."""
    simulators.fault("payments", "error", status=503, retry_after_s=5, match={"task_id": task_id}, times=1)
    async with bench.worker(Role.SCHEDULER):
        with WorkerProcess(bench.settings, roles="agents") as worker:
            await worker.polls(bench.client, "payments")
            await bench.submit(order, task_id)
            await simulators.called("payments", task_id)
            assert await worker.stop() == 0
        async with bench.worker(Role.AGENTS):
            assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    kinds = [e.kind for e in (await bench.page(task_id)).events]
    assert (len(await bench.attempts(task_id)), kinds.count("expired")) == (2, 0)
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(93)
@pytest.mark.demand("G6", "B2")
async def test_run_made_by_reset_is_not_the_holder(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "latency", latency_ms=2_000, match={"task_id": task_id}, times=1)
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        task = (await bench.page(task_id)).task
        run_id = await reset(bench.client, task.locked_by or "", request_id=task_id)
        handle = bench.client.get_workflow_handle(task.locked_by or "", run_id=run_id)
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
        assert failed.value.cause.type == "Superseded"  # type: ignore[attr-defined]
        await bench.expire(task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
    assert simulators.calls("stock", task_id) == 1


@pytest.mark.failure(20)
@pytest.mark.demand("B1")
async def test_run_that_was_started_by_hand_is_refused_and_touches_nothing(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    bench.postpone(task_id)
    before = await bench.contents(task_id)
    task = await bench.stores.store.tasks.find(task_id)
    assert task is not None
    async with bench.worker(Role.SCHEDULER):
        for arguments in ([], ["nonsense"], [{"task_id": task_id}], [task.as_run(order)]):
            with pytest.raises(WorkflowFailureError) as failed:
                await bench.client.execute_workflow(
                    "order",
                    args=arguments,
                    id=f"by-hand-{task_id}",
                    task_queue="scheduler",
                    start_signal="compensate",
                )
            assert failed.value.cause.type == "NotAnAttempt"  # type: ignore[attr-defined]
    assert await bench.contents(task_id) == before


@pytest.mark.demand("D1", "D2")
async def test_schedule_recovers_what_expired_without_anybody_asking(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("shipping", "error", status=503, match={"task_id": task_id}, times=3)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, Role.SUPERVISOR):
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        (sweep,) = await bench.stores.store.database.rows("SELECT finished_at FROM sweep ORDER BY id DESC LIMIT 1")
        assert sweep["finished_at"] is not None
    page = await bench.page(task_id)
    assert [e.actor for e in page.events if e.kind == "expired"] == ["supervisor"]
    await bench.client.get_schedule_handle(SCHEDULE_ID).delete()


@pytest.mark.failure(66)
@pytest.mark.demand("D1")
async def test_missed_sweep_is_one_alert_and_the_schedule_is_remade(bench: Bench, databases: Databases) -> None:
    terms = sweep_settings(bench.settings)
    async with Database(databases.app, name="state store", size=2) as database:
        for _ in range(2):
            watch = SupervisionWatch(Supervision(database), bench.client, terms)
            watch._watching_since -= 4 * terms.interval_s
            await watch.watch()
    assert [a.kind for a in await bench.reads.alerts()] == ["missed_sweep"]

    async def there() -> bool:
        handle = bench.client.get_schedule_handle(SCHEDULE_ID)
        return (await handle.describe()).id == SCHEDULE_ID

    await eventually(there)
    await bench.client.get_schedule_handle(SCHEDULE_ID).delete()


@pytest.mark.failure(11, 107)
@pytest.mark.demand("C7", "C11")
async def test_answer_is_kept_once_and_only_with_its_signature(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
        url = callback_addresses(bench.settings).address(f"{task_id}:machine:0")
        answer = {"response_id": f"again-{task_id}", "status": "done", "result": {"machine_id": "m", "ip": "::1"}}
        async with httpx.AsyncClient() as http:
            codes = [(await http.post(url, json=answer)).status_code for _ in range(3)]
            forged = await http.post(url.replace("/callbacks/", "/callbacks/0"), json=answer)
            nonsense = await http.post(url, json={"status": "maybe"})
    assert codes == [204, 204, 204]
    assert (forged.status_code, nonsense.status_code) == (403, 422)
    again = "SELECT deliveries FROM inbox WHERE response_id = %(id)s"
    kept = await bench.stores.store.database.rows(again, {"id": answer["response_id"]})
    assert kept == [{"deliveries": 3}]
    page = await bench.page(task_id)
    machine_step = next(s for s in page.steps if s.name == "machine")
    assert machine_step.result is not None
    assert machine_step.result["machine_id"] != "m"


@pytest.mark.failure(14)
@pytest.mark.demand("C7", "C11", "B8")
async def test_answer_nobody_waited_for_is_taken_by_the_next_attempt(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await bench.submit(machine, task_id, "provisioning")
        await bench.sent(simulators, "cloud", f"{task_id}:machine:0")
        run = str((await bench.page(task_id)).task.locked_by)
        await bench.client.get_workflow_handle(run).terminate("gone")
    async with bench.worker(Role.CALLBACKS):

        async def answered() -> bool:
            rows = await bench.stores.store.database.rows("SELECT 1 AS one FROM inbox")
            return bool(rows)

        await eventually(answered)
    before = simulators.calls("cloud", task_id)
    await bench.expire(task_id)
    await bench.sweep()
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert simulators.calls("cloud", task_id) == before + 1, "only the name: the machine's answer was in the inbox"
