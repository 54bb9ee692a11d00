"""A service that keeps no tombstones: undo waits the original out, and is done again after a quarantine (F6, F7)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from subprocess import run

import psycopg
import pytest

from domain.attempts import BeginStep
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from testing import ROOT
from testing.bench import Bench
from testing.records import ORDER
from testing.settings import environment
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.courier.parcel import QUARANTINE
from tests.workers import WorkerProcess

COURIER = {"SAS_DEFINITIONS": "tests.courier", "SAS_AGENTS": "tests.courier"}


@pytest.mark.failure(32)
@pytest.mark.demand("F6", "F7")
async def test_effect_that_appears_after_its_undo_is_undone_again(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    """The order for the parcel is on its way for longer than its deadline and the first undo.

    Under the key of the first undo the service would repeat that there was nothing to undo.
    """
    simulators.fault("shipping", "amnesia")
    simulators.fault("shipping", "latency", latency_ms=3_600, match={"task_id": task_id, "undo": False}, times=1)
    more = {**COURIER, "SAS_SERVICES__COURIER": f"{simulators.url}/shipping"}
    message = {"task_id": task_id, "definition": "parcel", "record": {"to": ORDER["address"]}}
    submitted = await asyncio.to_thread(
        run,
        [sys.executable, "starter.py", "submit", "-"],
        input=json.dumps(message).encode(),
        env={**os.environ, **environment(bench.settings), **more},
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    assert submitted.returncode == 0, submitted.stderr.decode()
    with WorkerProcess(bench.settings, more=more):
        await simulators.called("shipping", task_id)
        asked = await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="ada", reason="late"))
        assert asked.verdict == "accepted"

        async def quarantined() -> bool:
            return (await bench.page(task_id)).undo_log[0].quarantined_until is not None

        await eventually(quarantined)
        page = await bench.page(task_id)
        began = next(e for e in page.events if e.detail.get("began") == "collect" and e.kind == "undo_advanced")
        original = next(e for e in page.events if e.detail.get("began") == "collect" and e.kind == "advanced")
        assert (began.at - original.at).total_seconds() >= 1 + 2, "its deadline and the margin are waited out"
        assert simulators.live(task_id) == {}, "the original has not arrived when it is undone for the first time"

        async def arrived() -> bool:
            return simulators.live(task_id) == {"shipping": 1}

        await eventually(arrived)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    page = await bench.page(task_id)
    assert simulators.live(task_id) == {}
    undos = [c["key"] for c in simulators.ledger("shipping", task_id)["calls"] if c["undo"]]
    assert undos == [f"{task_id}:collect:undo-0", f"{task_id}:collect:undo-1"]
    until = page.undo_log[0].quarantined_until
    assert until is not None
    assert page.events[-1].at >= until, "no end before the quarantine is over"
    kept = [e for e in page.events if e.kind == "undo_advanced" and e.detail.get("quarantined") == "collect"]
    assert (until - kept[0].at).total_seconds() == pytest.approx(QUARANTINE.total_seconds(), abs=0.5)


@pytest.mark.failure(32)
@pytest.mark.demand("F7")
async def test_undo_waits_out_every_deadline_that_the_step_was_ever_granted(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    """In the store: the undo of a step without a barrier is not claimable before its complete_by and a margin."""
    await bench.submit(ORDER, task_id)
    store = bench.stores.store
    (claim,) = await store.claims.claim("w", [("order", 1)], 1, [task_id])
    hold = claim.hold("run")
    assert (await store.forward.advance(hold, begin=BeginStep(step="stock", within_s=60, calls=1))).grant is not None
    with psycopg.connect(bench.settings.admin_database_url.get_secret_value()) as owner:
        owner.execute("UPDATE step SET quarantine_s = 5 WHERE task_id = %s AND name = 'stock'", (task_id,))
    await store.requests.undo(UndoRequest(task_id=task_id, requester="ada", reason="late"))
    page = await bench.page(task_id)
    assert page.steps[0].complete_by is not None
    assert (page.task.not_before - page.steps[0].complete_by).total_seconds() == pytest.approx(2, abs=0.1)
    assert await store.claims.claim("w", [("order", 1)], 1, [task_id]) == []
