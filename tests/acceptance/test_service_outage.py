"""An outage of one service under load: the backlog stays under its cap, what does not need the service goes on, no
budget is spent on it, and afterwards work is released at a pace (C8, D12, H12). SAS_OUTAGE_S makes it longer."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from domain.states import TaskState
from runtime.roles import Role
from runtime.wiring import caps
from store.admission import CapReached
from store.submission import Accepted, SubmissionOutcome
from supervisor.schedule import SCHEDULE_ID
from testing.bench import Bench
from testing.records import MACHINE, ORDER
from testing.simulators import Simulators

OUTAGE_S = float(os.environ.get("SAS_OUTAGE_S", "10"))
IN_FLIGHT, PER_S, RAMP_S = 60, 10.0, 2.0
ORDERS_A_S = 12


async def _load(bench: Bench, task_id: str, seconds: float) -> dict[str, list[tuple[str, SubmissionOutcome]]]:
    """Orders at a steady rate, and a machine every second; what was said to each."""
    said: dict[str, list[tuple[str, SubmissionOutcome]]] = {"order": [], "provisioning": []}
    began = monotonic()
    for n in range(int(seconds * ORDERS_A_S)):
        kind = "provisioning" if n % ORDERS_A_S == 0 else "order"
        record: dict[str, Any] = MACHINE if kind == "provisioning" else ORDER
        name = f"{task_id}-{kind[0]}{n:04d}"
        said[kind].append((name, await bench.submit(record, name, kind)))
        await asyncio.sleep(max(0.0, began + n / ORDERS_A_S - monotonic()))  # the arrival rate, not a wait
    return said


def accepted(said: list[tuple[str, SubmissionOutcome]]) -> list[str]:
    """Ids that were acknowledged."""
    return [name for name, verdict in said if isinstance(verdict, Accepted)]


def calls(simulators: Simulators, ids: list[str]) -> list[datetime]:
    """When the shipping service received its calls for these tasks, in order."""
    ledger = simulators.whole_ledger("shipping")
    found = [datetime.fromisoformat(c["received_at"]) for c in ledger["calls"] if c["task_id"] in set(ids)]
    return sorted(found)


async def releases(bench: Bench, ids: list[str]) -> list[datetime]:
    """From when on those tasks that had waited for the breaker might be claimed."""
    events = [e for e in await bench.reads.events(ids) if e.actor == "breaker"]
    return sorted(e.at + timedelta(seconds=e.detail["delay_s"]) for e in events)


def most_in_a_second(instants: list[datetime]) -> int:
    """The most of these that lie within one second."""
    return max(sum(start <= i < start + timedelta(seconds=1) for i in instants) for start in instants)


async def watch_backlog(bench: Bench, most: list[int]) -> None:
    """Keep the number of orders in flight that there were, until cancelled."""
    while True:
        in_flight = {TaskState.PENDING, TaskState.PROCESSING}
        most.append(len(await bench.reads.newest_tasks(states=in_flight, definition="order", limit=10_000)))
        await asyncio.sleep(0.2)  # a sample


@pytest.mark.failure(77, 80)
@pytest.mark.timeout(300)
@pytest.mark.demand("C8", "D12", "H12", "A7")
async def test_outage_under_load_is_bounded_and_recovery_is_paced(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    settings = bench.settings.model_copy(
        update={
            "max_in_flight": IN_FLIGHT,
            "breaker_failures": 3,
            "breaker_pause": timedelta(seconds=1),
            "breaker_longest_pause": timedelta(seconds=2),
            "recovery_per_s": PER_S,
            "recovery_ramp": timedelta(seconds=RAMP_S),
        }
    )
    bench.stores.admission._caps = caps(settings)
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, Role.CALLBACKS, Role.SUPERVISOR, settings=settings):
        simulators.fault("shipping", "outage")
        most: list[int] = []
        backlog = asyncio.create_task(watch_backlog(bench, most))
        said = await _load(bench, task_id, OUTAGE_S)
        machines = accepted(said["provisioning"])
        await bench.reads.wait_state(machines, frozenset({TaskState.PROCESSED}), timedelta(seconds=30))
        during = calls(simulators, accepted(said["order"]))
        simulators.heal()
        healed = datetime.now(UTC)
        orders = accepted(said["order"])
        await bench.reads.wait_state([*orders, *machines], frozenset({TaskState.PROCESSED}), timedelta(seconds=120))
        backlog.cancel()
    await bench.client.get_schedule_handle(SCHEDULE_ID).delete()
    refused = [v for _, v in said["order"] if isinstance(v, CapReached)]
    peak = most_in_a_second([c for c in calls(simulators, orders) if c > healed])
    released = await releases(bench, orders)
    pace = most_in_a_second(released)
    print(
        f"outage {OUTAGE_S:g} s: {len(orders)} orders accepted, {len(refused)} refused, all of {len(machines)} machines"
        f" done before it healed; most orders in flight {max(most)}; {len(during)} calls during the outage;"
        f" {len(released)} that waited were let go, {pace} in the busiest second at a pace of {PER_S:g};"
        f" the service received {peak} calls in its busiest second then"
    )
    assert refused, "the backlog reached its cap"
    assert all(v.retry_after > timedelta(0) for v in refused)
    assert max(most) <= IN_FLIGHT
    assert len(machines) == len(said["provisioning"]), "what does not need the service was taken, and went on"
    assert len(during) <= 3 * 16 + 3 * OUTAGE_S, "calls of those at work when it began, and of one probe at a time"
    assert pace <= PER_S + 2, "the pace, but for its jitter"
    assert peak <= PER_S + 2 + 16, "and beside those that waited no more than a worker has at work"
