"""A task type that production code has never heard of: one definition, and everything else as it is (G12)."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from domain.states import TaskState
from domain.undo_requests import UndoRequest
from testing import ROOT
from testing.bench import Bench
from testing.settings import environment
from testing.simulators import Simulators
from tests.workers import WorkerProcess

MADE_UP = {"SAS_DEFINITIONS": "testing.definitions"}


async def submit(bench: Bench, task_id: str) -> str:
    """Submit a gift from the command line, as its users do; what it printed."""
    message = {"task_id": task_id, "definition": "gift", "record": {"sku": "TEA-01", "to": "ada@example.com"}}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "starter.py", "submit", "-", "-o", "json"),
        cwd=ROOT,
        env={
            **os.environ,
            **environment(bench.settings),
            **MADE_UP,
            "TEMPORAL_ADDRESS": bench.client.service_client.config.target_host,
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problems = await process.communicate(json.dumps(message).encode())
    assert process.returncode == 0, problems.decode()
    return out.decode()


@pytest.mark.demand("G12", "B5", "F12")
async def test_new_task_type_needs_one_definition_and_nothing_else(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    with WorkerProcess(bench.settings, more=MADE_UP):
        await submit(bench, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="returned"))
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {"mail": 1}


@pytest.mark.demand("D6", "D7", "G1", "E1")
async def test_definition_decides_what_follows_a_spent_threshold(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    """One retry, one extended wait, then Error with an alert: the Supervisor has never seen this definition's code."""
    simulators.fault("stock", "error", status=503, match={"task_id": task_id})
    with WorkerProcess(bench.settings, more=MADE_UP):
        await submit(bench, task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.ERROR
    page = await bench.page(task_id)
    expired = [e.detail["delay_s"] for e in page.events if e.kind == "expired"]
    first, wait, last = expired
    assert 0.1 <= first <= 0.125, "its jitter only lengthens a back-off"
    assert 0.3 <= wait <= 0.375
    assert last == 0.0
    assert [a.kind for a in page.alerts] == ["task_in_error"]
    assert simulators.calls("stock", task_id) == 6
