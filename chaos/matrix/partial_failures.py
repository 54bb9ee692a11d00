"""Scripts of the crash matrix that no single death shows: a part is full, away or stopped at the wrong moment.

Each stands for a kind of failure, and ends only once that has struck.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio.api.enums.v1 import EventType

from chaos.matrix.case_run import CaseRun
from chaos.matrix.case_runner import OUTAGE, SLOTS, SWEEP_PAGES
from chaos.matrix.scenarios import Scenario, around, whoever
from chaos.testbed import MOST_BUFFERED
from domain.definition import Definition, Registry
from domain.ids import attempt_id
from domain.states import EventKind, TaskState
from runtime.roles import Role
from testing.definitions.errand import ERRAND
from testing.definitions.gift import GIFT
from testing.records import FULL, MACHINE, ORDER
from testing.waiting import eventually

_ENDS = (EventKind.RELEASED, EventKind.EXPIRED, EventKind.GAVE_UP)
_FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


async def signalled_in_vain(run: CaseRun) -> None:
    """Undo is asked of a run whose worker is dead, and the run is terminated before anybody has read that.

    The order goes on without it meanwhile, for as long as Temporal waits for a worker that died with the request
    in its hands: 10 s. It must not come to its end before, for a mail can't be undone.
    """
    run.fault("stock", "latency", latency_ms=1_500, times=1, match={"undo": False})
    for service in ("payments", "shipping"):
        run.fault(service, "latency", latency_ms=6_000, times=1, match={"undo": False})
    run.fault("mail", "latency", latency_ms=4_000)
    run.fault("mail", "error")
    await run.submit(ORDER)
    await run.called("stock")
    run.worker.pause()
    attempt = run.testbed.client.get_workflow_handle(attempt_id("order", run.task_id, 1))
    await attempt.signal("compensate", "nobody hears this")
    await attempt.terminate(reason="a test asks for it")
    await run.worker.kill()
    await run.reached(TaskState.COMPENSATED)
    asked = [e.actor for e in (await run.page()).events if e.kind is EventKind.UNDO_REQUESTED]
    assert [actor.partition(":")[0] for actor in asked] == ["signal"], asked


async def too_large_to_start(run: CaseRun) -> None:
    """Temporal takes no run of an order of that size; another order goes on meanwhile."""
    line = {**ORDER["lines"][0], "sku": "\x01" * 64}
    await run.submit({**ORDER, "lines": [line] * 200})
    await run.testbed.settle(ids=[await run.beside(ORDER)])
    await run.reached(TaskState.ERROR)


async def stopped_in_a_call(run: CaseRun) -> None:
    """Its worker is told to stop while a call takes longer than the grace."""
    run.fault("payments", "latency", latency_ms=4_500, times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.called("payments")
    await run.worker.terminate()
    await run.reached(TaskState.PROCESSED)
    first = next(e.kind for e in (await run.page()).events if e.kind in _ENDS)
    assert first is EventKind.RELEASED, f"the attempt ended as {first}"


async def answered_while_temporal_is_away(run: CaseRun) -> None:
    """The machine is there, and its answer comes, while Temporal can't be reached."""
    temporal = run.testbed.proxies["temporal"]
    async with _answers_held(run):
        await run.submit(MACHINE, "provisioning")
        await eventually(lambda: _is_answered(run, 1))
        temporal.faults.blackhole = True
    await eventually(lambda: _is_kept(run))
    temporal.heal()
    await run.reached(TaskState.PROCESSED)
    failed = {step for e in (await run.page()).events for step in e.detail.get("failed", ())}
    assert "machine" not in failed, "its answer came too late"


async def branches_fail(run: CaseRun) -> None:
    """Of two branches of a graph one spends the calls of two attempts, and the slower one those of one."""
    run.fault("cloud", "error", times=6, match={"path": "/cloud/addresses"})
    run.fault("cloud", "latency", latency_ms=1_500, times=3, match={"path": "/cloud/disks"})
    run.fault("cloud", "error", times=3, match={"path": "/cloud/disks"})
    await run.submit(MACHINE, "provisioning")
    await run.reached(TaskState.PROCESSED)


async def expired_while_supervision_is_out(run: CaseRun) -> None:
    """Orders expire while nobody sweeps any more: more of them than one sweep takes up afterwards."""
    await eventually(lambda: _has_swept(run))
    await run.work_as(*(r for r in run.testbed.roles if r is not Role.SUPERVISOR))
    try:
        orders = await _held(run, SWEEP_PAGES + 1)
        for task_id in orders:
            await run.runner.expire(task_id)
        await eventually(lambda: _is_unsupervised(run))
    finally:
        run.testbed.give_roles(*run.testbed.roles)
        await run.worker.kill()  # told to stop, it would give its orders back
    await run.testbed.settle(ids=orders)
    for task_id in orders:
        expired = [e for e in (await run.testbed.reads.page(task_id)).events if e.kind is EventKind.EXPIRED]
        assert [e.epoch for e in expired][:1] == [1], f"the first attempt at {task_id} has not expired"
        assert not expired[0].detail.get("failed"), f"its expiry counts a failure of {task_id}"


async def beside_waiting_machines(run: CaseRun) -> None:
    """More machines wait for their answers than their worker has slots; an order comes."""
    async with _answers_held(run):
        machines = [await run.beside(MACHINE, "provisioning") for _ in range(SLOTS + 1)]
        await eventually(lambda: _is_answered(run, len(machines)))
        await run.submit(ORDER)
        await run.reached(TaskState.PROCESSED)
        waiting = {(await run.testbed.reads.page(task_id)).task.state for task_id in machines}
        assert waiting == {TaskState.PROCESSING}, "the machines have not waited"
    await run.testbed.settle(ids=machines)


async def beside_a_bad_row(run: CaseRun) -> None:
    """Of two orders that expire together, the first can't be recovered: it has an event that nobody of ours wrote."""
    orders = await _held(run, 2)
    bad = orders[-1]
    async with run.runner.planted_event(bad):
        for task_id in (bad, run.task_id):
            await run.runner.expire(task_id)
        await run.reached(TaskState.PROCESSED)
        await eventually(lambda: _is_left_out(run, bad))
    await run.testbed.settle(ids=[bad])


async def signalled_too_often(run: CaseRun) -> None:
    """So many signals come while an inline step is at work that Temporal fails its workflow task."""
    run.fault("stock", "latency", latency_ms=3_000, times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.called("stock")
    attempt = run.testbed.client.get_workflow_handle(attempt_id("order", run.task_id, 1))
    for _ in range(MOST_BUFFERED + 1):
        await attempt.signal("noise")
    await run.reached(TaskState.PROCESSED)
    assert _FAILED in [e.event_type async for e in attempt.fetch_history_events()], "no workflow task failed"
    assert run.testbed.simulators.calls("stock", run.task_id) == 1


async def known_to_one_worker(run: CaseRun) -> None:
    """Of two workers one has the definition, which is done and undone by it."""
    async with _worker_that_knows(run, GIFT) as known:
        await run.submit({"sku": "TEA-01", "to": "ada@example.com"}, "gift", known)
        await run.reached(TaskState.PROCESSED)
        await run.signal()
        await run.reached(TaskState.COMPENSATED)
        await run.testbed.client.get_workflow_handle(attempt_id("gift", run.task_id, 2)).result()
    assert (await run.page()).task.epoch == 2, "an attempt came to nothing"


async def run_again_beside_itself(run: CaseRun) -> None:
    """Temporal fails a workflow task for too many signals; its worker hears of that only in the middle of a later call.

    That is when it asks for more time, after 8 s: the call before it and the one that is under way are run again.
    """
    run.fault("mail", "latency", latency_ms=3_500, match={"undo": False})
    async with _worker_that_knows(run, ERRAND) as known:
        await run.submit({"to": "ada@example.com"}, "errand", known)
        await run.called("mail")
        attempt = run.testbed.client.get_workflow_handle(attempt_id("errand", run.task_id, 1))
        for _ in range(MOST_BUFFERED + 1):
            await attempt.signal("noise")
        await run.reached(TaskState.PROCESSED)
        await attempt.result()
    assert _FAILED in [e.event_type async for e in attempt.fetch_history_events()], "no workflow task failed"


_P, _C = TaskState.PROCESSED, TaskState.COMPENSATED
_CLOUD, _MAIL = {"cloud": 4}, {"mail": 1}

PARTIAL_FAILURES = (
    Scenario(
        "order signalled in vain",
        signalled_in_vain,
        _C,
        {},
        once=around("signal_with_start_workflow_execution"),
        supervised=True,
    ),
    Scenario("order too large to start", too_large_to_start, TaskState.ERROR, {}),
    Scenario("order whose worker is stopped in a call", stopped_in_a_call, _P, FULL),
    Scenario(
        "machine answered while Temporal is away", answered_while_temporal_is_away, _P, {"cloud": 4}, proxied=True
    ),
    Scenario("machine whose branches fail", branches_fail, _P, _CLOUD),
    Scenario("orders that expire while nobody sweeps", expired_while_supervision_is_out, _P, FULL, supervised=True),
    Scenario("order beside waiting machines", beside_waiting_machines, _P, FULL, proxied=True),
    Scenario(
        "order that expires beside a bad row",
        beside_a_bad_row,
        _P,
        FULL,
        once=whoever("alert_once"),
        supervised=True,
    ),
    Scenario("order signalled too often", signalled_too_often, _P, FULL),
    Scenario("gift that one worker knows", known_to_one_worker, _C, _MAIL),
    Scenario("errand run again beside itself", run_again_beside_itself, _P, {"mail": 3}),
)


@asynccontextmanager
async def _worker_that_knows(run: CaseRun, definition: Definition) -> AsyncIterator[Registry]:
    """A worker beside the runner's that has a definition which only tests know."""
    await run.testbed.stores.admission.publish(definition)
    knows = await run.testbed.process(ROLES=Role.SCHEDULER, SAS_DEFINITIONS="testing.definitions")
    try:
        yield Registry([definition])
    finally:
        knows.send(signal.SIGKILL)
        await knows.ended()


@asynccontextmanager
async def _answers_held(run: CaseRun) -> AsyncIterator[None]:
    """Later answers are on their way for so long."""
    callbacks = run.testbed.proxies["callbacks"]
    callbacks.effects.clear()
    callbacks.faults.stall = True
    try:
        yield
    finally:
        callbacks.heal()


async def _is_answered(run: CaseRun, times: int) -> bool:
    """Whether so many answers, or more, are on their way."""
    return run.testbed.proxies["callbacks"].effects["stalled"] >= times


async def _held(run: CaseRun, number: int) -> list[str]:
    """So many orders, the first one the script's own, which are held in a slow call."""
    match = {"task_id": f"{run.task_id}*", "undo": False}
    run.fault("stock", "latency", latency_ms=4_000, times=number, match=match)
    await run.submit(ORDER)
    orders = [run.task_id, *[await run.beside(ORDER) for _ in range(number - 1)]]
    for task_id in orders:
        await run.testbed.simulators.called("stock", task_id)
    return orders


async def _is_kept(run: CaseRun) -> bool:
    return bool(await run.runner.ask("SELECT 1 FROM inbox WHERE key LIKE %s", f"{run.task_id}:%"))


async def _has_swept(run: CaseRun) -> bool:
    return bool(await run.runner.ask("SELECT 1 FROM sweep WHERE finished_at IS NOT NULL"))


async def _is_unsupervised(run: CaseRun) -> bool:
    query = "SELECT 1 FROM sweep HAVING max(finished_at) < clock_timestamp() - %s::interval"
    return bool(await run.runner.ask(query, OUTAGE))


async def _is_left_out(run: CaseRun, task_id: str) -> bool:
    return "not_recovered" in {a.kind for a in (await run.testbed.reads.page(task_id)).alerts}
