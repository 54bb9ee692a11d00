"""Requests, answers and records that are lost, late, disordered or unreadable."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from time import monotonic
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.run import audit
from audit.sources.ledgers import read_ledgers
from audit.sources.stores import open_loader
from audit.task import Tolerances
from devstack.servers.postgres import EmbeddedPostgres
from domain.attempts import WriteResult
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from store.claims import Hold
from supervisor.decide import decide
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from tests.failures.servers import ended, submitted
from tests.integration.store_bench import StoreBench, begin, own_store_bench

ROUNDS, EACH = 25, 8
HOUR, SOON = timedelta(hours=1), timedelta(seconds=5)
FAULTS: dict[str, dict[str, Any]] = {
    "outage": {"rate": 0.1},
    "lost_reply": {"rate": 0.1},
    "duplicate": {"rate": 0.2, "latency_ms": 100},
    "latency": {"rate": 0.4, "jitter_ms": 200},
}
"""Lost on the way there, lost on the way back, delivered twice, overtaken by others."""


@pytest.mark.failure(15)
@pytest.mark.demand("C2", "C5", "C13")
async def test_orders_end_whole_or_undone_although_messages_are_lost_or_doubled(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    for service in FULL:
        for kind, rule in FAULTS.items():
            simulators.fault(service, kind, **rule)
    async with bench.worker():
        ids = await submitted(bench, order, task_id, 10)
        ends = {TaskState.PROCESSED, TaskState.COMPENSATED}
        assert await ended(bench, ids) <= ends
        for i in ids[:2]:
            await bench.stores.store.requests.undo(UndoRequest(task_id=i, requester="test", reason="returned"))
        assert await ended(bench, ids) == ends
        pages = [await bench.page(i) for i in ids]
    whole = [p.task.task_id for p in pages if p.task.state is TaskState.PROCESSED]
    assert len(whole) > 5
    assert {i: simulators.live(i) for i in whole} == dict.fromkeys(whole, FULL)
    assert [simulators.live(i).keys() - {"mail"} for i in ids if i not in whole] == [set()] * (len(ids) - len(whole))
    async with httpx.AsyncClient(base_url=simulators.url) as http:
        fired = [r for s in FULL for r in (await http.get(f"/control/{s}/faults")).json()]
    assert {r["rule"]["kind"] for r in fired if r["fired"]} == set(FAULTS)
    async with open_loader(databases.app, databases.orders, Tolerances(detection_delay=SOON), HOUR) as loader:
        assert (await audit(loader, None, await read_ledgers(simulators.url, await loader.now()))).violations == []


@pytest.fixture
async def store(templates: EmbeddedPostgres) -> AsyncIterator[StoreBench]:
    """The state store by itself."""
    async with own_store_bench(templates) as bench:
        yield bench


@pytest.mark.failure(16)
@pytest.mark.demand("C3", "C9", "D5")
async def test_of_a_timer_and_an_answer_at_once_exactly_one_wins(store: StoreBench, task_id: str) -> None:
    """In each of 200 races the answer is written, or the Supervisor takes the task; never both, never neither."""
    chance = random.Random(11)  # noqa: S311 (repeatable offsets, no secrets)
    won: list[bool] = []
    way_s = 0.0  # what an answer needs to reach the store, learned from the races, so that they stay close
    for n in range(ROUNDS):
        holds = await asyncio.gather(*(store.begun(f"{task_id}-{n}-{m}") for m in range(EACH)))
        deadline = let_expire(store, within_s=0.05)
        answers = [answer(store, h, deadline - way_s + chance.uniform(-0.005, 0.005)) for h in holds]
        *reports, _ = await asyncio.gather(*answers, sweep_until(store, deadline + 0.01))
        await sweep(store)  # a row that was locked by a late answer is passed over
        for hold, report in zip(holds, reports, strict=True):
            won.append(report.end is None)
            step = store.step(hold.task_id, "stock")
            assert store.kinds(hold.task_id)[4:] == (["advanced"] if won[-1] else ["expired"])
            assert (step["state"], step["failure_count"]) == (("Completed", 0) if won[-1] else ("Running", 1))
            store.is_consistent(hold.task_id)
        way_s += 0.005 * (EACH / 2 - sum(won[-EACH:])) / EACH
    assert len(won) // 10 < sum(won) < len(won) * 9 // 10


def let_expire(store: StoreBench, *, within_s: float) -> float:
    """Let what is held and in time be over so soon; when, on the monotonic clock, to about a millisecond."""
    earliest = monotonic()
    store.owner(
        "WITH at AS MATERIALIZED (SELECT clock_timestamp() + make_interval(secs => %(s)s) AS deadline),"
        " t AS (UPDATE task SET complete_by = deadline FROM at WHERE locked_by IS NOT NULL AND last_event = 4)"
        " UPDATE step SET complete_by = deadline FROM at WHERE state = 'Running' AND name = 'stock'",
        s=within_s,
    )
    return (earliest + monotonic()) / 2 + within_s


async def answer(store: StoreBench, hold: Hold, at: float) -> WriteResult:
    """Write, at that instant, that the service has answered."""
    await asyncio.sleep(at - monotonic())
    return await store.store.forward.advance(hold, done="stock", result={}, calls=1, begin=begin("charge"))


async def sweep_until(store: StoreBench, end: float) -> None:
    """Sweep again and again."""
    while monotonic() < end:
        await sweep(store)


async def sweep(store: StoreBench) -> None:
    """Sweep once."""
    tasks = await store.supervision.expired(window=HOUR, page=EACH, after=(None, ""))
    if tasks:
        await store.supervision.recover([decide(t) for t in tasks])


@pytest.mark.failure(20)
@pytest.mark.demand("B6", "C5")
async def test_task_with_an_unreadable_record_fails_at_once_without_a_call(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    replace_record(databases, task_id, order | {"customer": "whom no row of the state store names"})
    async with bench.worker():
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    page = await bench.page(task_id)
    error = page.task.error or {}
    assert (error["step"], error["code"]) == ("stock", "definition_error")
    assert error["message"].startswith("order v1 fails: ValidationError: customer: ")
    assert "whom" not in error["message"]
    assert {s.state for s in page.steps} == {StepState.NOT_STARTED}
    assert simulators.ledger("stock", task_id)["calls"] == []


def replace_record(databases: Databases, task_id: str, record: dict[str, Any]) -> None:
    """Put another business record in place of a task's."""
    with psycopg.connect(databases.orders_owner) as connection:
        connection.execute("UPDATE business_record SET record = %s WHERE task_id = %s", (Jsonb(record), task_id))
