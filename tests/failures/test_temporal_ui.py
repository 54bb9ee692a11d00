"""What people do in the Temporal UI or with its command line: each of it, at every step, and the task ends well.

The runs are of Temporal's making, the tasks are the store's: whatever happens to a run, a sweep finds its task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle

from audit.run import audit
from audit.sources.ledgers import read_ledgers
from audit.sources.runs import read_runs
from audit.sources.stores import open_loader
from audit.task import Tolerances
from chaos.proxy import Faults, Proxy
from devstack.servers.temporal import EmbeddedTemporal
from devstack.stack.environment import SERVICES
from domain.search_attributes import SEARCH_ATTRIBUTES
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from runtime.temporal import connect, queue_of
from store.reads import TaskPage
from store.supervision import StaleRun
from supervisor.decide import decide
from supervisor.runs import end_runs
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.acceptance.test_compensation import temporal

POINTS = {
    "stock": ("stock", False, 3),
    "charge": ("payments", False, 6),
    "ship": ("shipping", False, 6),
    "confirm": ("mail", False, 3),
    "refund": ("payments", True, 6),
}
"""Where it happens: the service has done it and answered with an error, and the Agent waits so many seconds."""

PROCESSED, COMPENSATED = (TaskState.PROCESSED, FULL), (TaskState.COMPENSATED, {})
UNDONE = (TaskState.COMPENSATED, {"mail": 1})


@pytest.fixture(scope="module")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTemporal]:
    """A server on which runs can be paused."""
    server = EmbeddedTemporal(
        tmp_path_factory.mktemp("temporal"),
        ui_port=0,
        search_attributes=SEARCH_ATTRIBUTES,
        dynamic_config={"frontend.WorkflowPauseEnabled": "true"},
    )
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


async def in_the_middle(bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, point: str) -> str:
    """An order that is held in the middle of this point, its outcome unknown; its run."""
    service, undo, pause_s = POINTS[point]
    error = {"status": 500, "after_effect": True, "retry_after_s": pause_s, "times": 1}
    simulators.fault(service, "error", **error, match={"task_id": task_id, "undo": undo})
    await bench.submit(order, task_id)
    if undo:
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))

    async def called() -> bool:
        return simulators.calls(service, task_id, undo=undo) > 0

    await eventually(called)
    return str((await bench.page(task_id)).task.locked_by)


async def take_away(bench: Bench, action: str, run: str) -> None:
    """Terminate, reset or pause with Temporal's own tool; delete by the call behind it, which asks no question."""
    if action == "delete":
        execution = WorkflowExecution(workflow_id=run)
        request = DeleteWorkflowExecutionRequest(namespace=bench.client.namespace, workflow_execution=execution)
        await bench.client.workflow_service.delete_workflow_execution(request)
        return
    more = ("--type", "FirstWorkflowTask") if action == "reset" else ()
    await temporal(bench, "workflow", action, "--workflow-id", run, "--reason", "test", *more)


async def ends(bench: Bench, simulators: Simulators, task_id: str) -> tuple[TaskState, dict[str, int]]:
    """State and effects of a task once it is settled."""
    return await bench.settled_with_sweeps(task_id), simulators.live(task_id)


async def violations(databases: Databases, simulators: Simulators) -> list[Any]:
    """What the audit says of all tasks and of what the services have done."""
    tolerances = Tolerances(detection_delay=timedelta(seconds=3))
    async with open_loader(databases.app, databases.orders, tolerances, timedelta(seconds=30)) as loader:
        return (await audit(loader, None, await read_ledgers(simulators.url, await loader.now()))).violations


@pytest.mark.failure(93)
@pytest.mark.demand("G6", "B9", "D11", "F11", "H10")
@pytest.mark.parametrize(
    ("action", "points"),
    [
        ("terminate", {"stock", "charge", "ship", "confirm", "refund"}),
        ("delete", {"stock", "charge", "ship", "confirm", "refund"}),
        # Temporal resets to a workflow task that is done; the first step is a part of the first one.
        ("reset", {"charge", "ship", "confirm", "refund"}),
        ("pause", {"stock", "charge", "ship", "confirm", "refund"}),
    ],
)
async def test_another_attempt_ends_a_task_whose_run_is_lost(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    order: dict[str, Any],
    task_id: str,
    action: str,
    points: set[str],
) -> None:
    ids = {p: f"{task_id}-{p}" for p in sorted(points)}

    async def interrupt(point: str) -> None:
        run = await in_the_middle(bench, simulators, order, ids[point], point)
        await take_away(bench, action, run)
        await bench.expire(ids[point])

    async with bench.worker():
        await asyncio.gather(*map(interrupt, ids))
        found = {p: await ends(bench, simulators, t) for p, t in ids.items()}
    assert found == {p: UNDONE if p == "refund" else PROCESSED for p in points}
    for point, task in ids.items():
        kinds = [e.kind for e in (await bench.page(task)).events]
        assert "expired" in kinds, point
    assert await violations(databases, simulators) == []


@pytest.mark.failure(37, 93)
@pytest.mark.demand("G6", "F1", "F11", "H10")
async def test_run_cancelled_at_any_step_is_undone_unless_it_finishes_first(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """The last step is inline: the run learns of the cancellation when the task is Processed, and undoes nothing."""
    ids = {p: f"{task_id}-{p}" for p in POINTS}

    async def cancel(point: str) -> None:
        run = await in_the_middle(bench, simulators, order, ids[point], point)
        await temporal(bench, "workflow", "cancel", "--workflow-id", run)
        with pytest.raises(WorkflowFailureError):
            await bench.client.get_workflow_handle(run).result()

    async with bench.worker():
        await asyncio.gather(*map(cancel, ids))
        found = {p: await ends(bench, simulators, t) for p, t in ids.items()}
    assert found == dict.fromkeys(("stock", "charge", "ship"), COMPENSATED) | {"confirm": PROCESSED, "refund": UNDONE}
    assert await violations(databases, simulators) == []


@pytest.mark.failure(93)
@pytest.mark.demand("G6", "B2")
async def test_run_unpaused_after_its_replacement_changes_nothing(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        run = await in_the_middle(bench, simulators, order, task_id, "ship")
        await take_away(bench, "pause", run)
        await bench.expire(task_id)
        await bench.sweep()  # another one would terminate it
        assert await bench.settled(task_id) is TaskState.PROCESSED
        assert simulators.live(task_id) == FULL
        before = await bench.page(task_id)
        await temporal(bench, "workflow", "unpause", "--workflow-id", run)
        with pytest.raises(WorkflowFailureError):
            await bench.client.get_workflow_handle(run).result()
    after = await bench.page(task_id)
    assert (after.task, list(after.events)) == (before.task, list(before.events))
    assert await violations(databases, simulators) == []


@pytest.mark.failure(18)
@pytest.mark.demand("G6", "B9", "H10")
async def test_paused_run_is_listed_and_terminated_like_any_other(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    async def statuses() -> list[str]:
        async with open_loader(databases.app, databases.orders, Tolerances(), timedelta(seconds=30)) as loader:
            return [r.status for r in (await read_runs(bench.client, await loader.now())).by_task.get(task_id, ())]

    async def listed() -> bool:
        return await statuses() == ["PAUSED"]

    async with bench.worker():
        run = await in_the_middle(bench, simulators, order, task_id, "ship")
        await take_away(bench, "pause", run)
        await eventually(listed)
        assert await end_runs(bench.client, [StaleRun(attempt=run, given_up=True)]) == {run: ""}
        description = await bench.client.get_workflow_handle(run).describe()
    assert description.status is WorkflowExecutionStatus.TERMINATED


@pytest.mark.failure(94)
@pytest.mark.demand("F1", "B9")
async def test_unread_request_for_undo_is_passed_on_by_a_later_sweep(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: Any, **__: Any) -> None:
        raise TimeoutError("Temporal takes no signal just now")

    handle = await unread(bench, order, task_id)
    await handle.signal("compensate", {"requester": "customer", "reason": "never mind"})
    await handle.terminate("by a person")
    await bench.expire(task_id)
    with monkeypatch.context() as patch:
        patch.setattr(Client, "start_workflow", dies)
        for _ in range(4):
            await bench.sweep()
    assert (await bench.page(task_id)).task.state is TaskState.PENDING
    bench.postpone(task_id)
    await bench.sweep()
    async with bench.worker():
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert undo_is_asked_by(await bench.page(task_id)) == ["customer"]
    assert simulators.live(task_id) == {}


@pytest.mark.failure(94)
@pytest.mark.demand("F1", "G6")
@pytest.mark.parametrize("closed_by", ["its time-out", "a person"])
async def test_unread_request_for_undo_is_passed_on_at_recovery(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, closed_by: str
) -> None:
    """Also where a later attempt has finished the task meanwhile, and where the Supervisor died in between."""
    handle = await unread(bench, order, task_id, timedelta(seconds=1) if closed_by == "its time-out" else None)
    await handle.signal("compensate", {"requester": "customer", "reason": "never mind"})
    if closed_by == "a person":
        await handle.terminate("by a person")

    async def closed() -> bool:
        return (await handle.describe()).close_time is not None

    await eventually(closed)
    await bench.expire(task_id)
    async with bench.worker():
        page = await bench.stores.store.tasks.find(task_id)
        assert page is not None
        (found,) = await bench.supervision.expired(window=timedelta(days=1), page=9, after=(None, ""))
        assert await bench.supervision.recover([decide(found)]) == [(task_id, handle.id)]
        assert await bench.settled(task_id) is TaskState.PROCESSED, "whoever recovered it died before the run was ended"
        await bench.sweep()
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        await bench.sweep()
    assert undo_is_asked_by(await bench.page(task_id)) == ["customer"]
    assert simulators.live(task_id) == {"mail": 1}


@pytest.mark.failure(94)
@pytest.mark.demand("F1")
async def test_undo_request_that_its_run_handed_on_is_passed_once(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("payments", "refuse", match={"undo": True, "task_id": task_id})
    async with bench.worker():
        run = await in_the_middle(bench, simulators, order, task_id, "ship")
        await bench.client.get_workflow_handle(run).signal("compensate", "never mind")
        assert await bench.reached(task_id, TaskState.COMPENSATION_FAILED) is TaskState.COMPENSATION_FAILED
        before = await bench.contents(task_id)
        with suppress(WorkflowFailureError):
            await bench.client.get_workflow_handle(run).result()
        asked = bench.client.get_workflow_handle(f"order/{task_id}/undo")
        run_id = (await asked.describe()).run_id
        assert await end_runs(bench.client, [StaleRun(attempt=run)]) == {run: ""}
        assert (await asked.describe()).run_id == run_id
    assert await bench.contents(task_id) == before


@pytest.mark.failure(94)
@pytest.mark.demand("D9", "F1")
async def test_stale_runs_wait_for_a_sweep_if_temporal_is_silent(
    temporal_server: EmbeddedTemporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = temporal_server.address.split(":")
    async with Proxy((host, int(port))) as line:
        monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{line.port}")
        client = await connect()
        line.faults = Faults(blackhole=True)
        runs = [StaleRun(attempt=f"order/silent-{n}/1") for n in range(200)]
        async with asyncio.timeout(14):  # the activity has 15 s, and a look at one run may take 6
            assert await end_runs(client, runs) == {}


async def unread(
    bench: Bench, order: dict[str, Any], task_id: str, execution_timeout: timedelta | None = None
) -> WorkflowHandle[Any, Any]:
    """The run of an order that was claimed; no worker has ever taken it, nor ever will: none has its version."""
    await bench.submit(order, task_id)
    (claim,) = await bench.stores.store.claims.claim("gone", [("order", 1)], 1)
    return await bench.client.start_workflow(
        "order", id=claim.locked_by, task_queue=queue_of("order", 99), execution_timeout=execution_timeout
    )


def undo_is_asked_by(page: TaskPage) -> list[str]:
    """Whose requests for undo were accepted, without the channel that they came by."""
    return [e.actor.rpartition(":")[2] for e in page.events if e.kind == "undo_requested"]


@pytest.mark.failure(93)
@pytest.mark.demand("G6", "D11")
@pytest.mark.parametrize(("step", "others"), [("charge", {"shipping"}), ("ship", {"payments"})])
async def test_task_whose_activity_is_paused_ends_by_another_attempt(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, step: str, others: set[str]
) -> None:
    """Paused before a worker has taken it, it is never given to one; the next attempt has an activity of its own."""
    async with bench.worker(Role.SCHEDULER), bench.worker(Role.AGENTS, services=others):
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, step, StepState.RUNNING)
        run = str((await bench.page(task_id)).task.locked_by)

        async def scheduled() -> bool:
            description = await bench.client.get_workflow_handle(run).describe()
            return [a.activity_id for a in description.raw_description.pending_activities] == [step]

        await eventually(scheduled)
        await temporal(bench, "activity", "pause", "--activity-id", step, "--workflow-id", run)
        async with bench.worker(Role.AGENTS, services=set(SERVICES) - others):
            await bench.expire(task_id)
            assert await ends(bench, simulators, task_id) == PROCESSED
    service = {"charge": "payments", "ship": "shipping"}[step]
    assert {c["token"] for c in simulators.ledger(service, task_id)["calls"]} == {2}


@pytest.mark.failure(93)
@pytest.mark.demand("G6", "D11")
async def test_activity_completed_by_hand_can_not_end_the_task(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """What can't be read fails the workflow task, and a failure is a time-out: the next attempt asks the service."""
    made_up = {
        "text": ("complete", "--result", '"all is well"'),
        "empty": ("complete", "--result", "{}"),
        "null": ("complete", "--result", "null"),
        "failure": ("fail", "--reason", "test"),
    }
    ids = {name: f"{task_id}-{name}" for name in made_up}

    async def make_up(name: str) -> None:
        run = await in_the_middle(bench, simulators, order, ids[name], "charge")
        await temporal(bench, "activity", *made_up[name], "--activity-id", "charge", "--workflow-id", run)
        await bench.expire(ids[name])

    async with bench.worker():
        await asyncio.gather(*map(make_up, ids))
        assert {n: await ends(bench, simulators, t) for n, t in ids.items()} == dict.fromkeys(made_up, PROCESSED)
    assert await violations(databases, simulators) == []
