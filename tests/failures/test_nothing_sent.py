"""What certainly sent nothing costs nothing: no failure, no call, no attempt; an alert says what is lacking."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from activities.agents import all_agents
from activities.call_loop import Agents
from activities.queued import agent_activity
from activities.stalls import StallDetector
from devstack.processes.ports import free_port
from domain.states import EventKind, TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from store.reads import TaskPage
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually

CANT = "payments.charge: a worker on task queue payments can't carry it out: give it this release"
LACKS = {
    "nobody": "task queue payments: no worker took a step from it in time: start one, or more",
    "an older release": CANT,
    "a worker without the service": CANT,
    "a worker without the action": "payments.charge: a worker has no such action: give it this release",
    "a worker without the address": "service payments: a worker can't call it: SAS_SERVICES__PAYMENTS is not set",
}


@asynccontextmanager
async def served_by(who: str, bench: Bench) -> AsyncIterator[None]:
    """Somebody who serves the queue of the payments, and can't carry out what is asked of him."""
    if who == "nobody":
        yield
        return
    known = [a for a in all_agents() if a.service != "payments" or who != "a worker without the action"]
    services = {"shipping"} if who == "a worker without the service" else {"payments", "shipping"}
    act = agent_activity(Agents(known, {}), services, StallDetector())
    activities = [refund_of_old] if who == "an older release" else [act]
    grace = timedelta(seconds=1)
    async with Worker(bench.client, task_queue="payments", activities=activities, graceful_shutdown_timeout=grace):
        yield


@activity.defn(name="payments.give_back")
async def refund_of_old() -> None:
    """The only action of an older release."""


async def given_back(bench: Bench, task_id: str, times: int = 1) -> TaskPage:
    """Wait until the task was released so often; sweeps go on meanwhile. Everything on record about it then."""

    async def released() -> bool:
        await bench.sweep()
        return [e.kind for e in (await bench.page(task_id)).events].count(EventKind.RELEASED) >= times

    await eventually(released)
    return await bench.page(task_id)


def spent(page: TaskPage) -> list[tuple[str, int, int, int]]:
    """Steps at work that have counted a failure or lost calls: failures, calls lost, and calls reserved, each."""
    at_work = [s for s in page.steps if s.state in ("Running", "Undoing")]
    found = [
        (s.name, s.failure_count, s.budget - s.budget_left, s.reserved)
        if s.state == "Running"
        else (s.name, s.failure_count, s.undo_budget - s.undo_budget_left, s.reserved)
        for s in at_work
    ]
    return [f for f in found if any(f[1:])]


@pytest.mark.failure(76)
@pytest.mark.demand("C3", "D5", "E2")
@pytest.mark.parametrize("who", LACKS)
async def test_order_on_an_unserved_queue_loses_nothing_and_goes_on_later(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, who: str
) -> None:
    async with bench.worker(Role.SCHEDULER):
        await bench.submit(order, task_id)
        async with served_by(who, bench):
            page = await given_back(bench, task_id, times=2)
        assert spent(page) == []
        assert page.task.failure_count == 0
        assert EventKind.EXPIRED not in [e.kind for e in page.events]
        assert [(a.kind, a.message) for a in page.alerts] == [("lacking", LACKS[who])], "once, however often"
        assert simulators.calls("payments", task_id) == 0
        async with bench.worker(Role.AGENTS):
            assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
    assert simulators.calls("payments", task_id) == 1


@pytest.mark.failure(76)
@pytest.mark.demand("C3", "F10")
async def test_undo_on_an_unserved_queue_loses_nothing_and_is_finished_later(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.settled(task_id)
    async with bench.worker(Role.SCHEDULER):
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="cli:test", reason="returned"))
        page = await given_back(bench, task_id)
        assert page.task.state is TaskState.COMPENSATING
        assert spent(page) == []
        assert [a.message for a in page.alerts] == [
            "task queue shipping: no worker took a step from it in time: start one, or more"
        ]
        async with bench.worker(Role.AGENTS):
            assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {"mail": 1}


@pytest.mark.failure(78)
@pytest.mark.demand("C8", "D5", "E2")
@pytest.mark.parametrize("service", ["stock", "payments"], ids=["an inline step", "a queued one"])
async def test_order_with_an_unreachable_service_loses_nothing(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, service: str
) -> None:
    nowhere = {**bench.settings.services, service: f"http://127.0.0.1:{free_port()}"}
    async with bench.worker(settings=bench.settings.model_copy(update={"services": nowhere})):
        await bench.submit(order, task_id)
        page = await given_back(bench, task_id, times=2)
    assert spent(page) == []
    assert (page.task.failure_count, page.alerts) == (0, [])
    assert EventKind.EXPIRED not in [e.kind for e in page.events]
    services, _ = await bench.reads.services()
    assert {s.name for s in services if s.failures} == {service}
    async with bench.worker():
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
    assert simulators.calls(service, task_id) == 1
