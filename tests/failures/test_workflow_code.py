"""Workflow code that is wrong, or that changed under a running attempt: it costs time, never money."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.workflow import NondeterminismError

from domain.states import StepState, TaskState
from runtime.roles import Role
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.sources import imported, sources, used
from tests.replay.test_replay import RECORDED, history_of, replayer
from workflows.attempt import Attempt

FORWARD, FINISH = Attempt.forward, Attempt._finish


async def with_a_timer(self: Attempt) -> None:
    """A release that begins an attempt with a timer: it does not replay what ran without."""
    await asyncio.sleep(0.001)
    await FORWARD(self)


async def with_a_bug(self: Attempt, name: str, report: Any) -> None:
    """A release that fails when a step is done."""
    raise KeyError("a bug")


async def that_blocks(self: Attempt) -> None:
    """A release that holds its thread for longer than a workflow may."""
    time.sleep(2.5)  # noqa: ASYNC251 (the mistake that is to be caught)
    await FORWARD(self)


async def failed_tasks(run: WorkflowHandle[Any, Any]) -> list[tuple[str, str]]:
    """Cause and message of every workflow task of a run that failed."""
    failed = [
        e.workflow_task_failed_event_attributes
        for e in (await run.fetch_history()).events
        if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    return [(WorkflowTaskFailedCause.Name(f.cause), f.failure.message) for f in failed]


async def fails_a_task(run: WorkflowHandle[Any, Any]) -> str:
    """Wait until a workflow task of a run has failed, which is no failure of the run; what it says."""

    async def there() -> bool:
        return bool(await failed_tasks(run))

    await eventually(there)
    assert (await run.describe()).status is WorkflowExecutionStatus.RUNNING
    return str((await failed_tasks(run))[0])


async def run_of(bench: Bench, task_id: str) -> WorkflowHandle[Any, Any]:
    """The run that holds a task; it starts after the claim."""
    run = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))

    async def started() -> bool:
        with suppress(RPCError):
            return bool((await run.describe()).run_id)
        return False

    await eventually(started)
    return run


@pytest.mark.failure(86)
@pytest.mark.demand("H6")
async def test_release_that_does_not_replay_a_recorded_history_fails_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    history = history_of(next(f for f in RECORDED if f.stem.startswith("order_processed")))
    await replayer().replay_workflow(history)
    monkeypatch.setattr(Attempt, "forward", with_a_timer)
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history)


@pytest.mark.failure(86)
@pytest.mark.demand("H6", "B8")
async def test_task_that_a_release_can_not_replay_ends_after_rollback(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.worker(Role.SCHEDULER):
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "charge", StepState.RUNNING)
        run = await run_of(bench, task_id)
    with monkeypatch.context() as release:
        release.setattr(Attempt, "forward", with_a_timer)
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            assert "NON_DETERMINISTIC_ERROR" in await fails_a_task(run)
    await bench.expire(task_id)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
    assert {c["key"] for c in simulators.ledger("payments", task_id)["calls"]} == {f"{task_id}:charge:0"}


@pytest.mark.failure(89, 92)
@pytest.mark.demand("B8", "B9", "D11")
@pytest.mark.parametrize(
    ("method", "mistake", "said"), [("_finish", with_a_bug, "a bug"), ("forward", that_blocks, "deadlock")]
)
async def test_bug_in_workflow_code_fails_no_task(
    bench: Bench,
    simulators: Simulators,
    order: dict[str, Any],
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    mistake: Any,
    said: str,
) -> None:
    with monkeypatch.context() as release:
        release.setattr(Attempt, method, mistake)
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            await bench.submit(order, task_id)
            await bench.reached(task_id, TaskState.PROCESSING)
            assert said in await fails_a_task(await run_of(bench, task_id))
    assert (await bench.page(task_id)).task.state is TaskState.PROCESSING
    await bench.expire(task_id)

    async def alerted() -> bool:
        await bench.sweep()
        return [
            (a.kind, said in a.message, mistake.__name__ in a.message) for a in (await bench.page(task_id)).alerts
        ] == [("workflow_code_fails", True, True)]

    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
        await eventually(alerted)
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(92)
def test_workflow_code_asks_no_clock_no_chance_and_no_system() -> None:
    """Our own modules pass through the sandbox as they are, so that it would not stop them."""
    barred = {"datetime.datetime", "os", "random", "secrets", "socket", "subprocess", "threading", "time", "uuid"}
    found = {path: imported(tree) & barred for path, tree in sources("workflows", "definitions", "domain")}
    found["domain/packages.py"] -= {"os"}  # which reads, once, where to look for definitions
    found["domain/messages.py"] -= {"datetime.datetime"}  # a stamp of Temporal's, which is passed on
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.failure(85)
def test_nothing_is_decided_by_what_temporal_lists() -> None:
    """Visibility lags behind and may be off: only people look at it, through the command line and its audit."""
    lists = {"list_workflows", "count_workflows", "list_workflow_executions", "count_workflow_executions"}
    lists |= {"list_open_workflow_executions", "list_closed_workflow_executions", "scan_workflow_executions"}
    found = {path: used(tree) & lists for path, tree in sources() if not path.startswith(("audit/", "cli/"))}
    assert {path: names for path, names in found.items() if names} == {}
