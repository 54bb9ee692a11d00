"""A worker that is told to stop is gone within its grace, whatever is in the way, and costs no task anything."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from chaos.proxy import Faults, Proxy
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from domain.states import TaskState
from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.clocks import clock_off_by
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import PATIENCE_S, eventually
from tests.acceptance.test_outages import away
from tests.workers import WorkerProcess

ALL = "scheduler,agents,supervisor,callbacks"
LIMIT_S = 5.0
"""The grace of the tests, the margin of the limit, and something for a busy machine."""


async def stops(worker: WorkerProcess) -> float:
    """Tell a worker to stop; seconds until it has, with exit code 0."""
    began = monotonic()
    assert await worker.stop() == 0
    return monotonic() - began


# --- calls that take longer than the grace --------------------------------------------------------------------


@pytest.mark.failure(2)
@pytest.mark.demand("E3", "B10")
@pytest.mark.parametrize("service", ["stock", "payments"], ids=["an inline step", "a queued one"])
async def test_call_longer_than_the_grace_costs_one_call_and_no_failure(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, service: str
) -> None:
    simulators.fault(service, "latency", latency_ms=4_500, times=1, match={"task_id": task_id})
    with WorkerProcess(bench.settings) as worker:
        await bench.submit(order, task_id)
        await simulators.called(service, task_id)
        assert await stops(worker) < LIMIT_S
    page = await bench.page(task_id)
    (row,) = [s for s in page.steps if s.service == service]
    assert (page.task.state, page.task.failure_count, page.events[-1].kind) == (TaskState.PENDING, 0, "released")
    assert (row.failure_count, row.reserved) == (0, 1)
    async with bench.worker():
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert "expired" not in [e.kind for e in (await bench.page(task_id)).events]
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(2)
@pytest.mark.demand("E3")
async def test_calls_on_several_queues_share_one_grace(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    paying, shipping = f"{task_id}-paying", f"{task_id}-shipping"
    simulators.fault("payments", "latency", latency_ms=9_000, times=1, match={"task_id": paying})
    simulators.fault("shipping", "latency", latency_ms=9_000, times=1, match={"task_id": shipping})
    with WorkerProcess(bench.settings) as worker:
        for task in (paying, shipping):
            await bench.submit(order, task)
        await simulators.called("payments", paying)
        await simulators.called("shipping", shipping)
        assert await stops(worker) < LIMIT_S
    for task in (paying, shipping):
        page = await bench.page(task)
        assert (page.task.state, page.events[-1].kind) == (TaskState.PENDING, "released")


# --- parts that are away --------------------------------------------------------------------------------------


@pytest.fixture
async def line(temporal_server: EmbeddedTemporal) -> AsyncIterator[Proxy]:
    """A line to Temporal that can be cut."""
    host, port = temporal_server.address.split(":")
    async with Proxy((host, int(port))) as proxy:
        yield proxy


def through(line: Proxy) -> dict[str, str]:
    """The environment of a worker that reaches Temporal by that line."""
    return {"TEMPORAL_ADDRESS": f"127.0.0.1:{line.port}"}


@pytest.mark.failure(3)
@pytest.mark.parametrize("faults", [Faults(blackhole=True), Faults(refuse=True)], ids=["silent", "refusing"])
@pytest.mark.parametrize("roles", [ALL, "supervisor", "callbacks", "agents"])
async def test_worker_stops_within_its_grace_while_temporal_is_away(
    settings: Settings, client: object, line: Proxy, roles: str, faults: Faults
) -> None:
    with WorkerProcess(settings, roles=roles, more=through(line)) as worker:
        await worker.logged("worker ready")
        line.faults = faults
        line.reset()
        assert await stops(worker) < LIMIT_S


@pytest.mark.failure(3)
async def test_worker_told_to_stop_while_it_connects_ends_at_once(settings: Settings, line: Proxy) -> None:
    line.faults = Faults(blackhole=True)
    with WorkerProcess(settings, more=through(line)) as worker:
        await eventually(lambda: swallowed(line))
        assert await stops(worker) < LIMIT_S


async def swallowed(line: Proxy) -> bool:
    """Whether somebody has said something that nobody heard."""
    return line.effects["swallowed"] > 0


@pytest.mark.failure(3)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("roles", [ALL, "supervisor", "callbacks"])
async def test_worker_stops_within_its_grace_while_postgresql_is_away(
    settings: Settings, templates: EmbeddedPostgres, databases: Databases, roles: str
) -> None:
    with WorkerProcess(settings, roles=roles) as worker:
        await worker.logged("worker ready")
        with away(templates, databases.owner):
            assert await stops(worker) < LIMIT_S


@pytest.mark.failure(3)
@pytest.mark.usefixtures("client")
async def test_half_sent_answer_does_not_keep_the_callbacks_from_ending(settings: Settings) -> None:
    with WorkerProcess(settings, roles="callbacks") as worker:
        await worker.logged("worker ready")
        _, writer = await asyncio.open_connection(settings.callback_host, settings.callback_port)
        writer.write(b"POST /callbacks/x HTTP/1.1\r\n")
        assert await stops(worker) < LIMIT_S
        writer.close()


@pytest.mark.failure(3)
@pytest.mark.usefixtures("client")
async def test_second_signal_ends_a_worker_at_once(settings: Settings, line: Proxy) -> None:
    patient = settings.model_copy(update={"shutdown_grace": settings.shutdown_grace * 60})
    with WorkerProcess(patient, roles="agents", more=through(line)) as worker:
        await worker.logged("worker ready")
        line.faults = Faults(blackhole=True)
        worker.send(signal.SIGTERM)
        await worker.logged("worker draining")
        worker.send(signal.SIGTERM)
        async with asyncio.timeout(LIMIT_S):
            assert await worker.ended() == 128 + signal.SIGTERM


@pytest.mark.failure(3)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("offset", ["", "-2h", "+2h"], ids=["clock right", "clock behind", "clock ahead"])
async def test_worker_whose_end_is_cut_short_names_what_was_left(settings: Settings, line: Proxy, offset: str) -> None:
    elsewhen = clock_off_by(offset) if offset else {}
    if elsewhen is None:
        pytest.skip("there is no libfaketime here: pip install libfaketime, or apt-get install faketime")
    with WorkerProcess(settings, roles="agents", more={**elsewhen, **through(line)}) as worker:
        await worker.logged("worker ready")
        line.faults = Faults(blackhole=True)
        await stops(worker)
        await worker.logged("Agents on task queue payments")


NEVER_ENDS = """
import asyncio
from datetime import timedelta
from activities.draining import Draining
from runtime.signals import StopSignals

async def main():
    draining = Draining(timedelta(0))
    StopSignals(draining, timedelta(0))
    draining.begin()
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_process_ends_in_time_whoever_begins_its_draining() -> None:
    """A start that fails halfway must not leave a worker that claims and has no Agents."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", NEVER_ENDS, cwd=ROOT)
    async with asyncio.timeout(PATIENCE_S):
        assert await process.wait() == 1
