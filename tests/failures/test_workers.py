"""Workers that hang or are killed by what they carry: only their own attempt suffers, and it is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from definitions import registry
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import ended, submitted
from tests.failures.strange_worker import StrangeWorker
from tests.workers import WorkerProcess

MADE_UP = {"SAS_DEFINITIONS": "tests.failures.definitions"}


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The definitions that are made to hurt are registered, here and in the processes that are started."""
    for name, value in MADE_UP.items():
        monkeypatch.setenv(name, value)
    registry.cache_clear()
    yield
    monkeypatch.undo()
    registry.cache_clear()


@pytest.mark.failure(18)
@pytest.mark.demand("B9", "D6")
async def test_task_that_kills_its_workers_ends_in_error_by_itself(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    poison, deaths = f"{task_id}-poison", 0
    await bench.submit({"sku": "TEA-01"}, poison, "poison")
    ids = await submitted(bench, order, task_id, 2)
    while (await bench.page(poison)).task.state is not TaskState.ERROR:
        await kills(bench, poison)
        deaths += 1
        await bench.sweep()
    for i in ids:
        await bench.expire(i)
    await bench.sweep()
    page = await bench.page(poison)
    assert (page.task.epoch, deaths) == (3, 3)
    message = str((page.task.error or {})["message"])
    assert message.endswith("; 3 attempts in a row have expired without progress, which is the bound")
    assert [a.kind for a in page.alerts] == ["task_in_error"]
    runs = [await bench.client.get_workflow_handle(f"poison/{poison}/{n}").describe() for n in (1, 2, 3)]
    assert [r.status for r in runs] == [WorkflowExecutionStatus.TERMINATED] * 3, "or each would kill the next worker"
    async with bench.worker():
        assert await ended(bench, ids) == {TaskState.PROCESSED}
        await bench.stores.store.requests.undo(UndoRequest(task_id=poison, requester="test", reason="never mind"))
        assert await bench.reached(poison, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert [simulators.live(i) for i in (poison, *ids)] == [{}, FULL, FULL]


@pytest.mark.failure(18)
@pytest.mark.demand("B9", "F1")
@pytest.mark.parametrize(
    ("asked_of", "given", "who", "why"),
    [
        (2, [{"requester": "customer", "reason": "it takes too long"}], "customer", "it takes too long"),
        (3, [], "", "no reason given"),
    ],
    ids=["an attempt that is followed by another", "the last one, without a reason"],
)
async def test_undo_request_survives_a_run_that_kills_every_worker(
    bench: Bench, simulators: Simulators, task_id: str, asked_of: int, given: list[Any], who: str, why: str
) -> None:
    await bench.submit({"sku": "TEA-01"}, task_id, "poison")
    while (page := await bench.page(task_id)).task.state is not TaskState.ERROR:
        await kills(bench, task_id)
        if page.task.epoch == asked_of - 1:
            handle = bench.client.get_workflow_handle(f"poison/{task_id}/{asked_of}")
            await handle.signal("compensate", args=given)
        await bench.sweep()
    async with bench.worker():
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    page = await bench.page(task_id)
    (request,) = [e for e in page.events if e.kind == "undo_requested"]
    assert (request.actor, request.detail["reason"]) == (f"signal:{who or bench.client.identity}", why)
    assert request.detail["sender"] == bench.client.identity
    assert simulators.live(task_id) == {}


async def kills(bench: Bench, task_id: str) -> None:
    """A worker claims a task, and dies of it; the task has expired."""
    with WorkerProcess(bench.settings) as victim:
        await victim.died()
    await bench.expire(task_id)


@pytest.mark.failure(6)
@pytest.mark.demand("B8", "C3", "C9")
async def test_worker_whose_event_loop_hangs_loses_its_task_and_shows_it(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, tmp_path: Path
) -> None:
    until, alive = tmp_path / "until", bench.settings.health_file
    assert alive is not None
    with StrangeWorker(bench.settings, "hang", roles="scheduler", more={"UNTIL": str(until)}) as hung:
        await bench.submit(order, task_id)
        await simulators.called("stock", task_id)
        await is_older(alive, than_s=1.0)
        await bench.expire(task_id)
        await bench.sweep()
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
        before = await bench.page(task_id)
        until.touch()
        await is_younger(alive, than_s=0.5)
        assert await hung.stop() == 0
    after = await bench.page(task_id)
    assert [e.kind for e in after.events[len(before.events) :]] == ["late_answer"]
    assert (after.task.state, after.task.epoch, after.steps) == (before.task.state, before.task.epoch, before.steps)
    assert simulators.live(task_id) == FULL


async def is_older(file: Path, *, than_s: float) -> None:
    """Wait until a file is there that nobody has touched for so long."""

    async def old() -> bool:
        return file.exists() and time.time() - file.stat().st_mtime > than_s  # noqa: ASYNC240 (a local file)

    await eventually(old)


async def is_younger(file: Path, *, than_s: float) -> None:
    """Wait until somebody has touched a file that recently."""

    async def young() -> bool:
        return time.time() - file.stat().st_mtime < than_s  # noqa: ASYNC240 (a local file)

    await eventually(young)
