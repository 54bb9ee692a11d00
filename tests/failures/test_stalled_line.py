"""The line between a Scheduler and Temporal stalls behind a boundary: an Agent has no more time than is really left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from chaos.proxy import Proxy
from domain.states import StepState, TaskState
from runtime.roles import Role, running
from runtime.temporal import connect
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from tests.failures.test_temporal_ui import violations

STALL_S = 7.0


@pytest.fixture
async def line(client: Client) -> AsyncIterator[Proxy]:
    """The way to the Temporal server."""
    host, _, port = client.service_client.config.target_host.rpartition(":")
    async with Proxy((host, int(port))) as proxy:
        yield proxy


@pytest.mark.failure(44)
@pytest.mark.demand("C3", "C4")
async def test_stalled_line_takes_its_time_from_the_agents_grant(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    line: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    order: dict[str, Any],
    task_id: str,
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{line.port}")
    simulators.fault("stock", "latency", latency_ms=500, times=1, match={"task_id": task_id})
    async with bench.worker(Role.AGENTS), running(bench.settings, await connect(), {Role.SCHEDULER}, set()):
        await bench.submit(order, task_id)
        await simulators.called("stock", task_id)
        line.faults.stall = True  # behind it the charge is granted, and can't be asked for
        await bench.step_reached(task_id, "charge", StepState.RUNNING)
        await asyncio.sleep(STALL_S)  # the fault itself
        line.heal()
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    calls = simulators.ledger("payments", task_id)["calls"]
    behind = [c["time_left_ms"] for c in calls if c["token"] == 1]  # none, where a busy machine took the rest
    assert all(left <= (10 - STALL_S) * 1000 for left in behind)
    assert simulators.live(task_id) == FULL
    assert line.effects["stalled"] > 0
    assert await violations(databases, simulators) == []
