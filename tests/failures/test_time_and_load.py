"""Clocks that differ or jump, time zones, and more submissions than there is room for."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from definitions import registry
from devstack.servers.postgres import EmbeddedPostgres
from domain.states import StepState, TaskState
from store.admission import Admission, AdmissionCaps, CapReached
from store.claims import Claim
from store.database import Database
from store.submission import Accepted, SubmissionDesk
from store.supervision import Supervision
from supervisor.decide import decide
from testing.bench import Bench
from testing.clocks import clock_off_by
from testing.databases import Databases
from testing.records import FULL, ORDER
from testing.simulators import Simulators
from tests.integration.store_bench import LOADED, StoreBench, begin, own_store_bench
from tests.workers import WorkerProcess

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
async def opened(templates: EmbeddedPostgres) -> AsyncIterator[StoreBench]:
    """The state store by itself, on databases of this file."""
    async with own_store_bench(templates) as bench:
        yield bench


@pytest.fixture
def bare(opened: StoreBench) -> StoreBench:
    """The state store, empty."""
    opened.empty()
    return opened


# --- clocks ---------------------------------------------------------------------------------------------------


@pytest.mark.failure(68)
@pytest.mark.demand("D2", "C3")
@pytest.mark.parametrize("offset", ["-2h", "+2h"])
async def test_worker_with_a_wrong_clock_does_its_tasks_and_expires_none(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str, offset: str
) -> None:
    elsewhen = clock_off_by(offset)
    if elsewhen is None:
        pytest.skip("there is no libfaketime here: pip install libfaketime, or apt-get install faketime")
    simulators.fault("payments", "error", status=503, retry_after_s=1, times=1, match={"task_id": task_id})
    with WorkerProcess(bench.settings, more=elsewhen) as worker:
        await bench.submit(order, task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
        assert await worker.stop() == 0
    assert len(await bench.attempts(task_id)) == 1
    assert (await bench.page(task_id)).task.failure_count == 0
    assert simulators.live(task_id) == FULL
    left = [c["time_left_ms"] for c in simulators.ledger("payments", task_id)["calls"]]
    assert all(0 < ms <= 10_000 for ms in left)


async def step_clock(databases: Databases, by: timedelta) -> None:
    """Let the database's clock have jumped by so much: whatever it has on record was that much earlier."""
    async with await psycopg.AsyncConnection.connect(databases.owner) as connection:
        await connection.execute("SET session_replication_role = replica")
        for statement in (
            "UPDATE task SET complete_by = complete_by - %(by)s, not_before = not_before - %(by)s",
            "UPDATE step SET complete_by = complete_by - %(by)s, started_at = started_at - %(by)s",
        ):
            await connection.execute(statement, {"by": by})


@pytest.mark.failure(68)
@pytest.mark.demand("B2", "D2", "D5")
@pytest.mark.parametrize(("jump", "attempts"), [(-HOUR, 1), (HOUR, 2)], ids=["back", "forward"])
async def test_jump_of_the_database_clock_never_doubles_an_effect(
    bench: Bench,
    simulators: Simulators,
    databases: Databases,
    order: dict[str, Any],
    task_id: str,
    jump: timedelta,
    attempts: int,
) -> None:
    simulators.fault("shipping", "latency", latency_ms=1_000, match={"task_id": task_id})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        await step_clock(databases, jump)
        await bench.sweep()
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    assert len(await bench.attempts(task_id)) == attempts
    assert simulators.live(task_id) == FULL
    assert {c["key"] for c in simulators.ledger("shipping", task_id)["calls"]} == {f"{task_id}:ship:0"}


# --- time zones -----------------------------------------------------------------------------------------------

ZONES = ("UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Europe/Dublin")
TWICE = datetime(2025, 11, 2, 1, 30, tzinfo=ZoneInfo("America/New_York"))
"""An hour that comes twice."""


@contextmanager
def local_time(zone: str) -> Iterator[None]:
    """This process lives in another time zone."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


@pytest.mark.failure(69)
@pytest.mark.demand("D2", "D5")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(instants=[TWICE, TWICE.replace(fold=1), TWICE + HOUR], zone="America/New_York")
@example(
    instants=[datetime(2025, 3, 30, 1, 0, tzinfo=UTC), datetime(2011, 12, 30, 10, 0, tzinfo=UTC)], zone="Pacific/Apia"
)
@given(
    instants=st.lists(
        st.datetimes(datetime(1971, 1, 1), datetime(2025, 12, 31), timezones=st.timezones()),  # noqa: DTZ001 (zones are drawn)
        min_size=2,
        max_size=4,
        unique_by=lambda at: at.astimezone(UTC),
    ),
    zone=st.sampled_from(ZONES),
)
async def test_deadline_is_exact_to_the_microsecond_in_any_time_zone(
    bare: StoreBench, instants: list[datetime], zone: str
) -> None:
    bare.empty()
    by_instant = dict(
        zip((f"t-{n}" for n in range(len(instants))), sorted(i.astimezone(UTC) for i in instants), strict=True)
    )
    for task_id, instant in by_instant.items():
        await bare.begun(task_id)
        bare.owner("UPDATE task SET complete_by = %(at)s WHERE task_id = %(id)s", at=instant, id=task_id)
    address = f"{bare.databases.supervisor}?options={quote(f'-c TimeZone={zone}')}"
    with local_time(zone):
        async with Database(address, name="state store", size=1) as database:
            supervision = Supervision(database)
            found, after = [], (None, "")
            while page := await supervision.expired(window=100 * 365 * 24 * HOUR, page=1, after=after):  # type: ignore[arg-type]
                found += page
                after = (page[-1].complete_by, page[-1].task_id)  # type: ignore[assignment]
            assert {t.task_id: t.complete_by.astimezone(UTC) for t in found} == by_instant
            assert [t.task_id for t in found] == list(by_instant)
            assert len(await supervision.recover([decide(t) for t in found])) == len(instants)


# --- load -----------------------------------------------------------------------------------------------------


CAPS = AdmissionCaps(in_flight=100, pending=60, pending_age=HOUR)
BACKLOG = """
SELECT count(*) FILTER (WHERE state IN ('Pending', 'Processing')), count(*) FILTER (WHERE state = 'Pending') FROM task
"""


@pytest.mark.failure(73)
@pytest.mark.demand("A7")
async def test_backlog_is_never_above_its_caps_with_20_submitters_at_once(bare: StoreBench) -> None:
    """Work is taken away meanwhile, so that there is room again and again."""
    desk = SubmissionDesk(Admission(bare.database, CAPS), bare.orders, registry())
    refused, seen = list[CapReached](), list[tuple[int, int]]()

    async def submit(submitter: int) -> None:
        for n in range(10):
            message = {"task_id": f"t-{submitter}-{n}", "definition": "order", "record": ORDER}
            while isinstance(verdict := await desk.submit(desk.parse(json.dumps(message))), CapReached):
                refused.append(verdict)
                await asyncio.sleep(0.02)  # it would rather come again after `retry_after`
            assert isinstance(verdict, Accepted)

    async def take_away() -> None:
        while True:
            await asyncio.gather(*map(finish, await bare.store.claims.claim("worker", LOADED, 10)))

    async def finish(claim: Claim) -> None:
        hold = claim.hold("run")
        await bare.store.forward.advance(hold, begin=begin("stock"))
        await bare.store.forward.fail(hold, "stock", {"message": "no"}, unknown=False, then="error")

    async def watch() -> None:
        async with await psycopg.AsyncConnection.connect(bare.databases.app, autocommit=True) as connection:
            while True:
                cursor = await connection.execute(BACKLOG)
                seen.append(await cursor.fetchone() or (0, 0))

    others = [asyncio.create_task(t) for t in (take_away(), watch())]
    try:
        await asyncio.gather(*(submit(n) for n in range(20)))
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    assert max(s[0] for s in seen) <= CAPS.in_flight
    assert max(s[1] for s in seen) == CAPS.pending
    assert len(bare.owner("SELECT task_id FROM task")) == 200
    assert refused
    assert all(v.retry_after > timedelta(0) for v in refused)
