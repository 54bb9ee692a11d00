"""Answers that come too late change nothing, and are kept as evidence (C10)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from chaos.proxy import Faults, Proxy
from devstack.servers.temporal import EmbeddedTemporal
from domain.ids import idempotency_key
from domain.messages import Completed
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.callbacks.addresses import callback_addresses
from runtime.roles import Role, running
from runtime.temporal import connect
from store.inbox import InboxStore
from testing.bench import Bench
from testing.simulators import Simulators
from testing.waiting import eventually


async def late(bench: Bench, task_id: str) -> list[dict[str, Any]]:
    """Details of the late answers on record."""
    return [e.detail for e in (await bench.page(task_id)).events if e.kind == "late_answer"]


@pytest.mark.failure(14)
@pytest.mark.demand("C10")
async def test_late_answer_of_an_undone_inline_step_changes_nothing(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("stock", "latency", latency_ms=1_500, match={"task_id": task_id, "undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        await simulators.called("stock", task_id)
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="ada", reason="too slow"))
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED

        async def there() -> bool:
            return bool(await late(bench, task_id))

        await eventually(there)
    (kept,) = await late(bench, task_id)
    assert (kept["step"], kept["answer"]["kind"]) == ("stock", "overtaken"), "refused by the fence"
    page = await bench.page(task_id)
    assert page.task.state is TaskState.COMPENSATED
    assert page.steps[0].state is StepState.UNDONE
    assert simulators.live(task_id) == {}


@pytest.mark.failure(14)
@pytest.mark.demand("C10", "C11")
async def test_callback_for_which_nobody_waits_any_more_is_counted_once(
    bench: Bench, machine: dict[str, Any], simulators: Simulators, task_id: str
) -> None:
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, Role.CALLBACKS):
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
        before = await bench.page(task_id)
        url = callback_addresses(bench.settings).address(f"{task_id}:machine:0")
        answer = {"response_id": f"late-{task_id}", "status": "done", "result": {"machine_id": "m", "ip": "::1"}}
        async with httpx.AsyncClient() as http:
            for _ in range(3):
                (await http.post(url, json=answer)).raise_for_status()
    (kept,) = await late(bench, task_id)
    assert kept["answer"]["result"]["machine_id"] == "m"
    after = await bench.page(task_id)
    assert after.steps == before.steps
    assert after.task.state is TaskState.PROCESSED


@pytest.mark.failure(12)
@pytest.mark.demand("C11")
async def test_attempt_takes_an_answer_that_temporal_has_not_heard(
    bench: Bench, machine: dict[str, Any], simulators: Simulators, task_id: str
) -> None:
    """Nobody serves the callbacks: the answer comes into the inbox, and no activity is completed."""
    key = idempotency_key(task_id, "machine", 0)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await bench.submit(machine, task_id, "provisioning")
        await simulators.called("cloud", task_id)
        await bench.sent(simulators, "cloud", key)
        answer = Completed(result={"machine_id": "m-1", "ip": "10.0.0.1"}, calls=None)
        await InboxStore(bench.stores.store.database).put("by-itself", key, answer)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    page = await bench.page(task_id)
    assert (page.task.epoch, [s.failure_count for s in page.steps]) == (1, [0, 0, 0, 0])
    assert next(s.result for s in page.steps if s.name == "machine") == answer.result


@pytest.mark.demand("C10", "C11")
async def test_answer_that_contradicts_the_first_is_kept_and_decides_nothing(
    bench: Bench, machine: dict[str, Any], simulators: Simulators, task_id: str
) -> None:
    """The process that kept the first answer died before it told the run, and the service has changed its mind."""
    key = idempotency_key(task_id, "machine", 0)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await bench.submit(machine, task_id, "provisioning")
        await bench.sent(simulators, "cloud", key)
        first = Completed(result={"machine_id": "the first", "ip": "192.0.2.7"}, calls=None)
        assert await InboxStore(bench.stores.store.database).put("1", key, first)
        async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
            url = callback_addresses(bench.settings).address(key)
            contradiction = {"response_id": "2", "status": "failed", "code": "no_capacity"}
            assert (await http.post(url, json=contradiction)).status_code == 204
            assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    made = next(s for s in (await bench.page(task_id)).steps if s.name == "machine")
    assert (made.result or {})["machine_id"] == "the first"
    rows = await bench.stores.store.database.rows("SELECT response_id FROM inbox WHERE key = %(key)s", {"key": key})
    assert {"1", "2"} <= {r["response_id"] for r in rows}
    (_,) = await late(bench, task_id)


@pytest.mark.failure(28)
@pytest.mark.demand("C10", "C11")
async def test_unreadable_answer_ends_the_wait_and_the_service_is_asked(
    bench: Bench, machine: dict[str, Any], simulators: Simulators, task_id: str
) -> None:
    key = idempotency_key(task_id, "machine", 0)
    nobody = bench.settings.model_copy(update={"callback_url": "http://127.0.0.1:9"})
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, settings=nobody), bench.worker(Role.CALLBACKS):
        await bench.submit(machine, task_id, "provisioning")
        await bench.sent(simulators, "cloud", key)
        body = '{"response_id": "1", "status": "done", "result": {"machine_id": "m", "ip": "::1", "price": NaN}}'
        url = callback_addresses(bench.settings).address(key)

        async with httpx.AsyncClient() as http:

            async def told() -> bool:
                assert (await http.post(url, content=body)).status_code == 400
                return "gave_up" in [e.kind for e in (await bench.page(task_id)).events]

            await eventually(told)
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    (cause,) = [e.detail["cause"] for e in (await bench.page(task_id)).events if e.kind == "gave_up"]
    assert cause == "an answer that came later can't be read: result.price: NaN is no number of JSON"


@pytest.mark.failure(12)
@pytest.mark.demand("C10", "C11")
async def test_answer_is_acknowledged_only_when_temporal_has_it(
    bench: Bench,
    machine: dict[str, Any],
    simulators: Simulators,
    task_id: str,
    temporal_server: EmbeddedTemporal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the line between the callbacks and Temporal is cut."""
    key = idempotency_key(task_id, "machine", 0)
    nobody = bench.settings.model_copy(update={"callback_url": "http://127.0.0.1:9"})
    host, port = temporal_server.address.split(":")
    async with Proxy((host, int(port))) as line, httpx.AsyncClient(timeout=30) as http:
        monkeypatch.setenv("TEMPORAL_ADDRESS", f"{host}:{line.port}")
        client = await connect()
        callbacks = running(bench.settings, client, {Role.CALLBACKS}, set())
        async with bench.worker(Role.SCHEDULER, Role.AGENTS, settings=nobody), callbacks:
            await bench.submit(machine, task_id, "provisioning")
            await bench.sent(simulators, "cloud", key)
            url = callback_addresses(bench.settings).address(key)
            answer = {"response_id": "1", "status": "done", "result": {"machine_id": "m", "ip": "192.0.2.7"}}
            line.faults = Faults(blackhole=True)
            refused = await http.post(url, json=answer)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
            assert await InboxStore(bench.stores.store.database).find(key) is not None, "it is kept all the same"
            line.heal()
            assert (await http.post(url, json=answer)).status_code == 204
            assert await bench.settled(task_id) is TaskState.PROCESSED
    page = await bench.page(task_id)
    assert (page.task.epoch, [e.kind for e in page.events if e.kind == "late_answer"]) == (1, [])
