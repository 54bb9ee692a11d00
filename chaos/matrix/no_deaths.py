"""Scripts of the crash matrix in which nobody dies, but somebody is slow, is overtaken, or is not answered."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import psycopg

from audit.breakers import SEEN_WITHIN
from chaos.matrix.case_run import CaseRun
from chaos.matrix.partial_failures import PARTIAL_FAILURES
from chaos.matrix.scenarios import Scenario
from chaos.matrix.scripts import answered_late
from chaos.proxy import Cut
from domain.attempts import RunInput, StepView
from domain.ids import attempt_id
from domain.states import EventKind, StepState, TaskState
from runtime.roles import Role
from runtime.temporal import queue_of
from testing.records import FULL, ORDER
from testing.runs import reset
from testing.waiting import eventually

ORDER_STEPS = ("stock", "charge", "ship", "confirm")

_STALL_S = 7.0
"""Long enough to be seen beside what the matrix allows a message, and short enough for the workflow task."""


async def undone_in_mid_charge(run: CaseRun) -> None:
    """The service has taken the charge, and carries it out after the task was undone."""
    run.fault("payments", "latency", latency_ms=4_000, times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.called("payments")
    await run.ask_undo()
    await run.reached(TaskState.COMPENSATED)
    await _heard(run, EventKind.LATE_ANSWER)


async def overtaken_while_it_waits(run: CaseRun) -> None:
    """Its deadline passes while the service is slow; the next attempt asks for it when the answer comes."""
    await answered_late(run, latency_ms=3_000, times=2)


async def undone_while_it_expires(run: CaseRun) -> None:
    """The Supervisor has read that it expired; before it writes, undo is asked for, and is at work."""
    run.fault("stock", "latency", latency_ms=1_500, times=1, match={"undo": False})
    run.fault("stock", "latency", latency_ms=3_000, times=1, match={"undo": True})
    await run.submit(ORDER)
    await run.called("stock")
    last = _newest_sweep(run)
    await run.runner.expire(run.task_id)
    await eventually(lambda: _swept_since(run, last))
    await run.ask_undo()
    await eventually(lambda: _has_settled(run), within_s=40)


async def not_acknowledged(run: CaseRun) -> None:
    """At every boundary of its life the acknowledgements of some commits are lost."""
    services = ("stock", "payments", "shipping", "mail")
    for service in services:
        run.fault(service, "latency", latency_ms=400, times=1, match={"undo": False})
    await run.submit(ORDER)
    for service in services:
        await run.called(service)
        run.testbed.proxies["postgres"].arm(Cut.AFTER_COMMIT, 10)
    await run.reached(TaskState.PROCESSED)
    run.testbed.proxies["postgres"].heal()


async def service_out(run: CaseRun) -> None:
    """A service fails until its breaker opens."""
    run.fault("stock", "error", times=6, match={"undo": False})
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)


async def reply_lost(run: CaseRun) -> None:
    """A service does what it is asked, and its answer does not come."""
    run.fault("stock", "lost_reply", times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)


async def service_shut(run: CaseRun) -> None:
    """A person has kept tasks from a service for long, when an order comes to it; it goes on once it is let in."""
    force = run.testbed.stores.breakers.force
    await force("payments", "open", requester="tests", reason="their maintenance")
    await eventually(lambda: _has_long_moved(run, "payments"), within_s=2 * SEEN_WITHIN.total_seconds())
    await run.submit(ORDER)
    await _heard(run, EventKind.RELEASED, EventKind.PROCESSED)
    await force("payments", None, requester="tests", reason="they are back")
    await run.reached(TaskState.PROCESSED)


async def reset_in_mid_charge(run: CaseRun) -> None:
    """Somebody resets its run in Temporal, while a service is slow."""
    run.fault("payments", "latency", latency_ms=2_000, times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.called("payments")
    await reset(run.testbed.client, (await run.page()).task.locked_by or "", request_id=run.task_id)
    await run.reached(TaskState.PROCESSED)


async def forged_before(run: CaseRun) -> None:
    """Somebody has started a run by hand under the id of the first attempt, with a cheaper order; it is due later."""
    line = {**ORDER["lines"][0], "unit_price_minor": 1}
    views = [StepView(name=name, state=StepState.NOT_STARTED, key_generation=0) for name in ORDER_STEPS]
    forged = RunInput(
        task_id=run.task_id,
        definition="order",
        version=1,
        epoch=1,
        nonce="made up",
        undo=False,
        record={**ORDER, "lines": [line]},
        steps=views,
    )
    await run.testbed.client.start_workflow(
        "order",
        forged,
        id=attempt_id("order", run.task_id, 1),
        task_queue=queue_of("order", 1),
        start_delay=timedelta(seconds=2),
    )
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)


async def not_served(run: CaseRun) -> None:
    """Nobody serves the queue of its charge until its attempt has been given back; nobody is told to stop meanwhile."""
    await run.work_as(Role.SCHEDULER)
    await run.submit(ORDER)
    await _heard(run, EventKind.RELEASED)
    agents = await run.testbed.process(ROLES=Role.AGENTS)
    try:
        await run.reached(TaskState.PROCESSED)
    finally:
        agents.send(signal.SIGKILL)
        await agents.ended()
        await run.work_as(*run.testbed.roles)


async def stalled(run: CaseRun) -> None:
    """The line to Temporal stalls behind a boundary, which has granted the time of its charge."""
    run.fault("stock", "latency", latency_ms=500, times=1, match={"undo": False})
    await run.submit(ORDER)
    await run.called("stock")
    run.testbed.proxies["temporal"].faults.stall = True
    await eventually(lambda: _has_begun(run, "charge"))
    await asyncio.sleep(_STALL_S)  # the fault itself
    run.testbed.proxies["temporal"].heal()
    await run.reached(TaskState.PROCESSED)


async def contradicted_afterwards(run: CaseRun) -> None:
    """An order that is submitted again with other content, when it is Processed."""
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)
    await run.submit_by_process({**ORDER, "currency": "USD"}, expected="DeadLettered")


async def undo_refused(run: CaseRun) -> None:
    """An undo that its service refuses, whatever comes of that."""
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)
    run.fault("payments", "refuse", match={"undo": True})
    await run.ask_undo()
    await eventually(lambda: _has_settled(run))


async def not_confirmed(run: CaseRun) -> None:
    """The last service is out, until the Supervisor has the order undone."""
    run.fault("mail", "error")
    await run.submit(ORDER)
    await run.reached(TaskState.COMPENSATED)


_C, _P = TaskState.COMPENSATED, TaskState.PROCESSED
_KEPT = {"stock": 1, "payments": 1, "mail": 1}

NO_DEATHS = (
    Scenario("order undone in mid-charge", undone_in_mid_charge, _C, {}),
    Scenario("order overtaken", overtaken_while_it_waits, _P, FULL),
    Scenario("order undone while it expires", undone_while_it_expires, _C, {}),
    Scenario("order whose commits are not acknowledged", not_acknowledged, _P, FULL, proxied=True),
    Scenario("order that can't be confirmed", not_confirmed, _C, {}),
    Scenario("order whose service is out", service_out, _P, FULL),
    Scenario("order whose reply is lost", reply_lost, _P, FULL),
    Scenario("order whose next service is shut", service_shut, _P, FULL),
    Scenario("order whose run is reset", reset_in_mid_charge, _P, FULL),
    Scenario("order whose first run is forged", forged_before, _P, FULL),
    Scenario("order whose queue nobody serves", not_served, _P, FULL),
    Scenario("order whose line to Temporal stalls", stalled, _P, FULL, proxied=True),
    Scenario("order contradicted afterwards", contradicted_afterwards, _P, FULL),
    Scenario("undo refused for good", undo_refused, TaskState.COMPENSATION_FAILED, _KEPT),
    *PARTIAL_FAILURES,
)


async def _has_begun(run: CaseRun, step: str) -> bool:
    return any(e.detail.get("began") == step for e in (await run.page()).events)


async def _has_settled(run: CaseRun) -> bool:
    return (await run.page()).task.state.is_settled


async def _heard(run: CaseRun, *kinds: EventKind) -> None:
    async def heard() -> bool:
        return any(e.kind in kinds for e in (await run.page()).events)

    await eventually(heard)


def _newest_sweep(run: CaseRun) -> int:
    with psycopg.connect(run.testbed.owner) as connection:
        row = connection.execute("SELECT coalesce(max(id), 0) FROM sweep").fetchone()
    return int(row[0]) if row else 0


async def _has_long_moved(run: CaseRun, service: str) -> bool:
    """Whether every statement sees what the breaker of a service did last."""
    return await asyncio.to_thread(_moved_before, run, service, SEEN_WITHIN)


def _moved_before(run: CaseRun, service: str, age: timedelta) -> bool:
    query = "SELECT max(at) < clock_timestamp() - %s FROM service_event WHERE service = %s"
    with psycopg.connect(run.testbed.owner) as connection:
        row = connection.execute(query, (age, service)).fetchone()
    return bool(row and row[0])


async def _swept_since(run: CaseRun, last: int) -> bool:
    """Whether a sweep has begun after those that were there; its page is read right behind that."""
    return await asyncio.to_thread(_newest_sweep, run) > last
