"""The Supervisor against PostgreSQL directly: who is recovered, how often, at which pace, and what it alerts on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from devstack.servers.postgres import EmbeddedPostgres
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from operators.explain import what_happens_next
from store.database import Database
from store.reads import Reads
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport, SweepSettings
from supervisor.decide import decide
from supervisor.sweep import sweep_once
from testing.databases import Databases
from testing.waiting import PATIENCE_S
from tests.integration.store_bench import (
    LOADED,
    StoreBench,
    begin,
    shipped,
    undo,
)
from tests.integration.test_plans import CLOSED, STEPS, Planner, put

TERMS = SweepSettings(
    interval_s=10,
    window_s=3600,
    page=50,
    pages=40,
    recovery_per_s=50,
    recovery_ramp_s=2,
    stuck_after_s=300,
    undo_stalled_after_s=600,
    worker_gone_s=30,
)
WINDOW = timedelta(hours=1)


@pytest.fixture
def store(store: StoreBench) -> StoreBench:
    """The state store, empty, its definitions shown just now."""
    store.owner("UPDATE presence SET seen_at = clock_timestamp()")
    return store


async def sweep(store: StoreBench, **terms: Any) -> SweepReport:
    """One sweep."""
    return await sweep_once(SupervisorActivities(store.supervision, None), TERMS.model_copy(update=terms))


def copies(store: StoreBench, task_id: str, count: int) -> None:
    """So many more tasks just like this one, with everything that is on record of it, and all of them overdue."""
    for table in ("task", "step", "compensation", "event"):
        other = "jsonb_build_object('task_id', %(id)s || '-' || n)"
        if table == "task":
            other += " || jsonb_build_object('locked_by', 'order/' || %(id)s || '-' || n || '/1')"
        store.owner(
            f"INSERT INTO {table} SELECT (jsonb_populate_record(r, {other})).*"  # noqa: S608 (our own tables)
            f" FROM {table} AS r, generate_series(1, %(count)s) AS n WHERE r.task_id = %(id)s",
            id=task_id,
            count=count,
        )
    store.owner("UPDATE task SET complete_by = clock_timestamp() WHERE locked_by IS NOT NULL")
    store.owner("UPDATE step SET complete_by = clock_timestamp() WHERE state IN ('Running', 'Undoing')")


def alerts(store: StoreBench, kind: str) -> list[str]:
    """Messages of the alerts of a kind, oldest first."""
    return [r["message"] for r in store.owner("SELECT message FROM alert WHERE kind = %(kind)s ORDER BY id", kind=kind)]


# --- several Supervisors, and holders that move on --------------------------------------------------------------


@pytest.mark.failure(63)
@pytest.mark.demand("D4", "D5", "D9")
async def test_three_supervisors_recover_each_of_1000_tasks_exactly_once(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    copies(store, task_id, 999)
    async with AsyncExitStack() as stack:
        opened = [Database(store.databases.supervisor, name="state store", size=2) for _ in range(3)]
        supervisors = [SupervisorActivities(Supervision(await stack.enter_async_context(d)), None) for d in opened]
        reports = await asyncio.gather(*(sweep_once(s, TERMS) for s in supervisors))
        assert sum(r.found for r in reports) > 1_000, "they have met on the same rows"
        # what another had locked, a Supervisor passes over: the next sweep takes the rest
        reports.append(await sweep_once(supervisors[0], TERMS))
    assert sum(r.changed for r in reports) == 1_000
    counted = store.owner(
        "SELECT t.state, t.failure_count AS task, s.failure_count AS step,"
        " (SELECT count(*) FROM event AS e WHERE e.task_id = t.task_id AND e.kind = 'expired') AS events, count(*)"
        " FROM task AS t INNER JOIN step AS s ON s.task_id = t.task_id AND s.name = 'stock' GROUP BY 1, 2, 3, 4"
    )
    assert counted == [{"state": "Pending", "task": 1, "step": 1, "events": 1, "count": 1_000}]
    swept = store.owner("SELECT changed, finished_at IS NOT NULL AS finished FROM sweep ORDER BY id")
    assert all(s["finished"] for s in swept)
    assert sum(s["changed"] for s in swept) == 1_000
    store.is_consistent(f"{task_id}-500")


@pytest.mark.failure(64)
@pytest.mark.demand("D9", "B2")
@pytest.mark.parametrize("meanwhile", ["its holder went on", "another attempt has it"])
async def test_sweep_that_slept_before_its_write_evicts_nobody_who_moved_on(
    store: StoreBench, task_id: str, meanwhile: str
) -> None:
    hold = await store.begun(task_id)
    store.expire(task_id)
    (read,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    if meanwhile == "its holder went on":
        # as after a clock that was set back: the deadline is still to come
        store.owner("UPDATE task SET complete_by = clock_timestamp() + interval '1 minute'")
    else:
        await store.store.steps.release(hold, "draining", step="stock", sent=0, delay=timedelta(0))
        hold = await store.claim(task_id, "run-2")
        assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None
    assert (
        await store.store.forward.advance(hold, done="stock", result={}, calls=1, begin=begin("charge"))
    ).grant is not None
    before = store.contents(task_id)
    assert await store.supervision.recover([decide(read)]) == []
    assert store.contents(task_id) == before
    assert (await store.store.forward.advance(hold, done="charge", result={}, calls=1)).end is None


@pytest.mark.failure(46)
@pytest.mark.demand("D5")
@pytest.mark.parametrize(("started", "failures"), [("before", 1), ("meanwhile", 0)])
async def test_expiry_counts_no_failure_across_a_restart_of_the_database(
    store: StoreBench, task_id: str, started: str, failures: int
) -> None:
    await store.begun(task_id)
    if started == "meanwhile":
        store.owner("UPDATE event SET at = pg_postmaster_start_time() - interval '1 second' WHERE kind = 'claimed'")
    store.expire(task_id)
    assert (await sweep(store)).changed == 1
    row, (event,) = store.row(task_id), store.owner("SELECT detail FROM event WHERE kind = 'expired'")
    assert (row["state"], row["failure_count"]) == ("Pending", failures)
    assert store.step(task_id, "stock")["failure_count"] == failures
    assert ("not counted" in event["detail"]["cause"]) is (failures == 0)


@pytest.mark.demand("D5", "D6")
async def test_undo_that_a_policy_began_has_attempts_of_its_own(store: StoreBench, task_id: str) -> None:
    """What expired on the way forward is not held against it."""
    await store.begun(task_id)
    store.owner("UPDATE step SET budget_left = 0 WHERE name = 'stock'")
    store.expire(task_id)
    (forward,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    assert (await sweep(store)).changed == 1
    assert store.row(task_id)["state"] == "Compensating"
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    await store.claim(task_id, "run-2")
    store.expire(task_id)
    (undoing,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    assert (forward.expiries, undoing.expiries) == (0, 0)


# --- what was out while a task was held -----------------------------------------------------------------------


def supervised(store: StoreBench, *ago_s: float) -> None:
    """Let sweeps have finished so many seconds ago, and the server have been there all the time."""
    store.owner("DELETE FROM sweep")
    for s in ago_s:
        store.owner(
            "INSERT INTO sweep (started_at, finished_at, timeline)"
            " SELECT at, at, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int"
            " FROM (SELECT clock_timestamp() - make_interval(secs => %(s)s) AS at) AS ago",
            s=s,
        )


def claimed_ago(store: StoreBench, task_id: str, seconds: float) -> None:
    """Let a task have been claimed so long ago."""
    store.owner(
        "UPDATE event SET at = clock_timestamp() - make_interval(secs => %(s)s)"
        " WHERE kind = 'claimed' AND task_id = %(id)s",
        s=seconds,
        id=task_id,
    )


@pytest.mark.failure(66)
@pytest.mark.demand("D1", "D5")
async def test_expiry_across_an_outage_counts_nothing_however_late_it_is_found(
    store: StoreBench,
) -> None:
    """One page a sweep, of two rows: what was held meanwhile is found over three sweeps."""
    supervised(store, 100)
    before, after = [f"before-{n}" for n in range(5)], ["after"]
    for task_id in before:
        await store.begun(task_id)
        claimed_ago(store, task_id, 90)
        store.expire(task_id)
    assert (await sweep(store, page=2, pages=1)).changed == 2
    for task_id in after:  # claimed when supervision was back
        await store.begun(task_id)
        store.expire(task_id)
    for _ in range(3):
        await sweep(store, page=2, pages=1)
    failures = {i: (store.row(i)["failure_count"], store.step(i, "stock")["failure_count"]) for i in before + after}
    assert failures == dict.fromkeys(before, (0, 0)) | {"after": (1, 1)}


@pytest.mark.failure(66)
@pytest.mark.demand("D1", "D5")
@pytest.mark.parametrize(
    ("finished_ago", "held_for", "counts"),
    [
        ((0,), 90, True),
        ((35,), 90, False),
        ((35,), 1, False),
        ((), 1, True),
        ((), 35, False),
    ],
    ids=[
        "the last sweep was in time",
        "none for three intervals",
        "claimed in the last second of the outage",
        "the first sweep of all, soon enough",
        "the first sweep of all, which came late",
    ],
)
async def test_outage_is_known_by_the_time_of_a_hold(
    store: StoreBench, task_id: str, finished_ago: tuple[float, ...], held_for: float, counts: bool
) -> None:
    supervised(store, *finished_ago)
    await store.begun(task_id)
    claimed_ago(store, task_id, held_for)
    store.expire(task_id)
    await sweep(store)
    assert store.row(task_id)["failure_count"] == counts


@pytest.mark.failure(66)
@pytest.mark.demand("D1", "D9")
async def test_sweep_that_was_begun_and_never_finished_ends_no_outage(store: StoreBench, task_id: str) -> None:
    supervised(store, 60)
    await store.begun(task_id)
    store.expire(task_id)
    await store.supervision.begin_sweep(TERMS.outage)
    await store.supervision.begin_sweep(TERMS.outage)
    await sweep(store)
    assert store.row(task_id)["failure_count"] == 0


@pytest.mark.failure(46)
@pytest.mark.demand("D5", "H12")
async def test_expiry_counts_no_failure_across_a_failover(store: StoreBench, task_id: str) -> None:
    supervised(store, 5)
    store.owner("UPDATE sweep SET timeline = timeline - 1")
    await store.begun(task_id)
    store.expire(task_id)
    await sweep(store)
    assert store.row(task_id)["failure_count"] == 0


@pytest.mark.failure(66)
@pytest.mark.demand("C15", "D5", "E1")
async def test_uncounted_expiry_costs_no_calls_and_leaves_outcomes_unknown(store: StoreBench, task_id: str) -> None:
    """However often; the budget tells what was granted in all, so no call is ever made that was not."""
    hold = await store.begun(task_id)
    for n in range(1, 6):
        supervised(store, 60)
        store.expire(task_id)
        await sweep(store)
        step = store.step(task_id, "stock")
        assert (step["budget"], step["budget_left"]) == (9 + 3 * n, 9)
        hold = await store.claim(task_id, f"run-{n}")
        grant = (await store.store.forward.advance(hold, begin=begin("stock"))).grant
        assert grant is not None
        assert (grant.calls, grant.unknown) == (3, True)
    (event,) = store.owner("SELECT detail FROM event WHERE kind = 'expired' ORDER BY number LIMIT 1")
    assert (event["detail"]["outage"], event["detail"]["granted"]) == (True, {"stock": 3})
    store.is_consistent(task_id)


@pytest.mark.failure(71)
@pytest.mark.demand("D5", "E1", "F12")
async def test_failures_of_one_branch_cost_its_sibling_nothing(store: StoreBench, task_id: str) -> None:
    supervised(store, 5)
    await store.submitted(task_id, "provisioning")
    for n in range(2):
        hold = await store.claim(task_id, f"run-{n}")
        for step in ("address", "disk"):
            assert (await store.store.forward.advance(hold, begin=begin(step, "provisioning"))).grant is not None
        store.owner("UPDATE task SET complete_by = clock_timestamp()")
        store.owner("UPDATE step SET complete_by = clock_timestamp() WHERE name = 'address'")
        assert (await sweep(store)).changed == 1
    address, disk = store.step(task_id, "address"), store.step(task_id, "disk")
    assert (address["failure_count"], address["budget_left"]) == (2, 3)
    assert (disk["failure_count"], disk["budget_left"], disk["budget"]) == (0, 6 + 3, 9 + 2 * 3)


@pytest.mark.failure(71)
@pytest.mark.demand("D5", "E1")
async def test_release_of_one_branch_costs_its_sibling_no_calls(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, "provisioning", "address")
    assert (await store.store.forward.advance(hold, begin=begin("disk", "provisioning"))).grant is not None
    await store.store.steps.release(hold, "draining", step="address", sent=1, delay=timedelta(0))
    address, disk = store.step(task_id, "address"), store.step(task_id, "disk")
    assert (address["budget_left"], address["budget"]) == (8, 9)
    assert (disk["budget_left"], disk["budget"]) == (9, 12)


# --- rows that can't be recovered, and bounds -------------------------------------------------------------------


@pytest.mark.failure(65)
@pytest.mark.demand("D4", "D9")
@pytest.mark.parametrize("bad", ["its next event is there", "its policies say nothing", "somebody has locked its step"])
async def test_unrecoverable_row_is_an_alert_and_delays_no_other(store: StoreBench, bad: str) -> None:
    supervised(store, 5)
    await store.begun("good-1")
    await store.begun("bad", "provisioning", "address")
    await store.begun("good-2")
    for task_id in ("good-1", "bad", "good-2"):
        store.expire(task_id)
    with ExitStack() as stack:
        if bad == "its next event is there":
            store.owner(
                "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)"
                " SELECT 'bad', last_event + 1, 'noted', state, epoch, 'x', '{}' FROM task WHERE task_id = 'bad'"
            )
        elif bad == "its policies say nothing":
            (was,) = store.owner("SELECT policies::text FROM definition WHERE name = 'provisioning'")
            put = "UPDATE definition SET policies = %(policies)s::jsonb WHERE name = 'provisioning'"
            stack.callback(store.owner, put, policies=was["policies"])
            store.owner(put, policies='{"backoff_s": "soon"}')
        else:
            psql = stack.enter_context(psycopg.connect(store.databases.owner))
            psql.execute("SELECT 1 FROM step WHERE task_id = 'bad' FOR UPDATE")
        for _ in range(2):
            report = await sweep(store)
        assert (report.found, report.changed) == (1, 0)
    states = {i: store.row(i)["state"] for i in ("good-1", "bad", "good-2")}
    assert states == {"good-1": "Pending", "bad": "Processing", "good-2": "Pending"}
    found = store.owner("SELECT task_id, message FROM alert WHERE kind = 'not_recovered'")
    assert [a["task_id"] for a in found] == ["bad"]
    assert re.match("it has expired, and is not recovered: .+", found[0]["message"])
    assert store.owner("SELECT count(*) AS n FROM sweep WHERE finished_at IS NULL") == [{"n": 0}]


@pytest.mark.failure(67)
@pytest.mark.demand("D4", "D11")
async def test_sweep_whose_time_is_up_begins_no_other_page_and_finishes(store: StoreBench, task_id: str) -> None:
    supervised(store, 5)
    await not_begun(store, task_id, 10)
    report = await sweep(store, page=2, interval_s=0.0)
    assert (report.pages, report.changed) == (1, 0)
    assert store.owner("SELECT count(*) AS n FROM sweep WHERE finished_at IS NULL") == [{"n": 0}]


@pytest.mark.failure(19)
@pytest.mark.demand("B3", "D7")
async def test_attempts_that_begin_nothing_use_up_no_bound_for_days(store: StoreBench, task_id: str) -> None:
    supervised(store, 5)
    await store.claimed(task_id)
    for n in range(30):
        store.expire(task_id)
        await sweep(store)
        assert store.row(task_id)["state"] == "Pending"
        await store.claim(task_id, f"run-{n}")
    store.expire(task_id)
    (found,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    assert (found.expiries, decide(found).delay_s) == (30, 300.0)


@pytest.mark.failure(18)
@pytest.mark.demand("D7")
async def test_failed_attempts_count_from_zero_after_each_completed_step(store: StoreBench, task_id: str) -> None:
    supervised(store, 5)
    hold = await store.begun(task_id)
    counts = []
    for step in ("stock", "charge"):
        store.expire(task_id)
        (found,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
        counts.append(found.expiries)
        await sweep(store)
        hold = await store.claim(task_id, f"again-{step}")
        await store.forward(hold, step="charge")
    assert counts == [0, 0]


# --- the pace ---------------------------------------------------------------------------------------------------


async def not_begun(store: StoreBench, task_id: str, count: int) -> None:
    """So many overdue claims that began nothing: nothing but the pace delays their recovery."""
    await store.claimed(task_id)
    copies(store, task_id, count - 1)


def offsets(store: StoreBench) -> list[float]:
    """When each task may be claimed, in seconds from now, soonest first."""
    rows = store.owner("SELECT extract(epoch FROM not_before - clock_timestamp())::float8 AS s FROM task ORDER BY 1")
    return [r["s"] for r in rows]


def most_within_a_second(instants: list[float]) -> int:
    """The largest number of these instants, which are sorted, in any one second."""
    return max(sum(start <= other < start + 1 for other in instants[n:]) for n, start in enumerate(instants))


@pytest.mark.failure(80)
@pytest.mark.demand("D6", "D12")
async def test_handful_of_recoveries_may_go_at_once(store: StoreBench, task_id: str) -> None:
    await not_begun(store, task_id, 10)
    assert (await sweep(store)).changed == 10
    assert offsets(store)[-1] <= 0


@pytest.mark.failure(80)
@pytest.mark.demand("D12", "H12")
async def test_mass_recovery_goes_at_the_pace_over_all_pages_and_sweeps(store: StoreBench, task_id: str) -> None:
    for number, count in enumerate((300, 1, 150)):
        await not_begun(store, f"{task_id}-{number}", count)
        assert (await sweep(store)).changed == count
    delays = [r["delay"] for r in store.owner("SELECT detail -> 'delay_s' AS delay FROM event WHERE kind = 'expired'")]
    assert delays.count(0) == TERMS.recovery_per_s, "a second's worth goes at once, of the first sweep only"
    found = offsets(store)
    assert most_within_a_second(found) <= TERMS.recovery_per_s + 2
    whole = 451 / TERMS.recovery_per_s
    assert whole - 1 < found[-1] - found[0] < whole + 3 * TERMS.recovery_ramp_s


@pytest.mark.demand("D12")
async def test_queue_is_empty_again_once_its_pace_has_let_all_go(store: StoreBench, task_id: str) -> None:
    await not_begun(store, f"{task_id}-0", 300)
    await sweep(store)
    store.owner("DELETE FROM task")
    store.owner("UPDATE sweep SET started_at = started_at - interval '30 seconds'")
    await not_begun(store, f"{task_id}-1", 10)
    await sweep(store)
    assert offsets(store)[-1] <= 0


@pytest.mark.failure(80)
@pytest.mark.demand("D6", "D12")
async def test_back_off_has_a_jitter_that_only_lengthens_it(store: StoreBench, task_id: str) -> None:
    await not_begun(store, task_id, 50)
    page = await store.supervision.expired(window=WINDOW, page=50, after=(None, ""))
    decisions = [decide(t).model_copy(update={"delay_s": 40.0}) for t in page]
    await store.supervision.recover(decisions, per_s=1_000)
    found = offsets(store)
    assert found[0] > 39
    assert found[-1] <= 50
    assert found[-1] - found[0] > 2


@pytest.mark.failure(80)
@pytest.mark.demand("D12", "H12")
async def test_claims_after_an_outage_come_at_the_pace(store: StoreBench, task_id: str) -> None:
    await not_begun(store, task_id, 100)
    await sweep(store, recovery_per_s=40, recovery_ramp_s=1)
    claimed = 0
    async with asyncio.timeout(PATIENCE_S):
        while claimed < 100:
            claimed += len(await store.store.claims.claim("worker", LOADED, 1_000))
    rows = store.owner(
        "SELECT extract(epoch FROM e.at - s.started_at)::float8 AS after_s"
        " FROM event AS e, sweep AS s WHERE e.kind = 'claimed' AND e.epoch = 2 ORDER BY 1"
    )
    assert [n for n, r in enumerate(rows, 1) if n > 40 * max(1, r["after_s"]) + 2] == []


# --- what no deadline tells of ----------------------------------------------------------------------------------


def wait(store: StoreBench, minutes: int, *task_ids: str) -> None:
    """Let these tasks have been due for so long."""
    ago = "UPDATE task SET not_before = clock_timestamp() - make_interval(mins => %(m)s) WHERE task_id = ANY(%(ids)s)"
    store.owner(ago, m=minutes, ids=list(task_ids))


@pytest.mark.demand("D11", "G7")
async def test_tasks_of_a_definition_without_workers_are_one_alert(store: StoreBench) -> None:
    for name in ("t-1", "t-2", "t-3"):
        await store.submitted(name)
    wait(store, 6, "t-1")
    wait(store, 8, "t-2")
    store.owner("UPDATE presence SET seen_at = clock_timestamp() - interval '31 seconds' WHERE name = 'order'")
    for _ in range(2):
        await sweep(store)
    (message,) = alerts(store, "stuck_pending")
    assert re.fullmatch(r"order v1: no live worker has it; 2 tasks are due, the oldest, t-2, for 4\d\d s", message)
    store.owner("UPDATE alert SET raised_at = raised_at - interval '61 minutes'")
    await sweep(store)
    assert len(alerts(store, "stuck_pending")) == 2


@pytest.mark.demand("D11")
async def test_tasks_behind_an_open_breaker_are_an_alert_with_its_service(store: StoreBench) -> None:
    await store.submitted("blocked")
    await store.submitted("not-blocked", "provisioning")
    wait(store, 6, "blocked", "not-blocked")
    await store.breakers.force("stock", "open", requester="anna", reason="their maintenance")
    await sweep(store)
    assert [m.partition(";")[0] for m in sorted(alerts(store, "stuck_pending"))] == [
        "order v1: the breaker of stock is open",
        "provisioning v1: its workers claim none of them",
    ]


@pytest.mark.demand("D11")
async def test_tasks_that_wait_on_purpose_or_are_held_are_no_alert(store: StoreBench) -> None:
    for name in ("due", "later", "held"):
        await store.submitted(name)
    wait(store, 4, "due")
    await store.claim("held")
    store.owner("UPDATE task SET not_before = clock_timestamp() + interval '1 hour' WHERE task_id = 'later'")
    store.owner("UPDATE task SET not_before = clock_timestamp() - interval '1 hour' WHERE task_id = 'held'")
    store.owner("UPDATE presence SET seen_at = clock_timestamp() - interval '1 day'")
    await sweep(store)
    assert store.owner("SELECT * FROM alert") == []


async def asked(store: StoreBench, task_id: str, minutes: int) -> None:
    """A task whose undo was asked for so long ago."""
    await store.begun(task_id, step="charge")
    await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="by mistake"))
    since(store, task_id, minutes)


COPIES = """
INSERT INTO task (
    task_id, definition, version, state, confirmed, locked_by, complete_by, epoch, not_before, record_digest, submitter,
    data_class, last_event
)
SELECT
    task_id || '-' || n, definition, version, state, confirmed, locked_by, complete_by - interval '1 minute', epoch,
    not_before - interval '1 minute', record_digest, submitter, data_class, last_event
FROM task, generate_series(1, %(n)s) AS n
"""
"""So many more of each task, due or to expire a minute before it, and in their states since now."""


def since(store: StoreBench, task_id: str, minutes: int) -> None:
    """Let a task be in its state for so long."""
    ago = "UPDATE task SET state_since = clock_timestamp() - make_interval(mins => %(m)s) WHERE task_id = %(id)s"
    store.owner(ago, id=task_id, m=minutes)


@pytest.mark.failure(19)
@pytest.mark.demand("D11", "G7")
async def test_tasks_without_progress_are_one_alert_a_definition_and_hour(
    store: StoreBench,
) -> None:
    within_s = max(p["within_s"] for p in shipped("order").policies()["steps"].values())
    for name, ago_s in (("slow", within_s + 290), ("stuck", within_s + 310), ("worse", within_s + 400)):
        hold = await store.claimed(name)
        for n in range(3):
            await store.store.steps.release(hold, "no worker has the queue", sent=0, delay=timedelta(0))
            hold = await store.claim(name, f"run-{n}")
        store.owner(
            "UPDATE task SET progress_at = clock_timestamp() - make_interval(secs => %(s)s) WHERE task_id = %(id)s",
            s=ago_s,
            id=name,
        )
    for _ in range(2):
        await sweep(store)
    (message,) = alerts(store, "no_progress")
    assert re.fullmatch(
        r"order v1: 2 tasks are open without progress, the longest, worse, for \d+ s;"
        r" last said: no worker has the queue of 2",
        message,
    )
    store.owner("DELETE FROM alert")
    assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None
    await store.store.forward.advance(hold, done="stock", result={}, calls=1)
    await sweep(store)
    (message,) = alerts(store, "no_progress")
    assert "1 tasks are open without progress, the longest, stuck," in message


@pytest.mark.failure(19)
@pytest.mark.demand("D11")
async def test_long_wait_for_the_first_claim_is_no_lack_of_progress(store: StoreBench) -> None:
    await store.submitted("waited")
    store.owner("UPDATE task SET progress_at = clock_timestamp() - interval '1 hour'")
    await store.claim("waited")
    await sweep(store)
    assert alerts(store, "no_progress") == []


@pytest.mark.failure(34)
@pytest.mark.demand("D11", "F8", "F9", "G7")
@pytest.mark.parametrize("where", ["waiting", "backing off", "held"])
async def test_unfinished_undo_is_one_alert_and_shown_as_stalled(
    store: StoreBench, reads: Reads, task_id: str, where: str
) -> None:
    await asked(store, task_id, 11)
    await asked(store, f"{task_id}-in-time", 9)
    if where == "backing off":
        store.owner("UPDATE task SET not_before = clock_timestamp() + interval '3 minutes'")
    if where == "held":
        hold = await store.claim(task_id)
        assert (await store.store.undo.advance(hold, begin=undo("charge"))).grant is not None
    for _ in range(2):
        await sweep(store)
    found = store.owner("SELECT task_id, message FROM alert WHERE kind = 'undo_stalled'")
    assert [a["task_id"] for a in found] == [task_id]
    assert re.fullmatch(r"its undo was asked for 6\d\d s ago; not undone yet: charge, stock", found[0]["message"])
    pages = [await reads.page(i) for i in (task_id, f"{task_id}-in-time")]
    said = [what_happens_next(p, has_live_worker=True, sweep_interval=timedelta(seconds=10)) for p in pages]
    assert ["stalled" in s for s in said] == [True, False]


@pytest.mark.failure(34)
@pytest.mark.demand("D11", "F8")
async def test_undo_that_stalls_is_found_behind_any_number_that_do_not(store: StoreBench, task_id: str) -> None:
    """Both where it waits and where it is held: those that are due sooner, or expire sooner, are in time."""
    await asked(store, task_id, 11)
    await asked(store, f"{task_id}-held", 11)
    await store.claim(f"{task_id}-held")
    store.owner("UPDATE task SET complete_by = complete_by + interval '1 hour'")
    store.owner(COPIES, n=1_001)
    await sweep(store)
    found = store.owner("SELECT task_id FROM alert WHERE kind = 'undo_stalled' ORDER BY task_id")
    assert [a["task_id"] for a in found] == [task_id, f"{task_id}-held"]


@pytest.mark.demand("D11", "F8")
async def test_undo_asked_anew_that_stalls_is_another_alert(store: StoreBench, task_id: str) -> None:
    await asked(store, task_id, 11)
    await sweep(store)
    hold = await store.claim(task_id)
    await store.store.undo.advance(hold, begin=undo("charge"))
    await store.store.undo.fail(hold, "charge", {"message": "never"})
    assert store.row(task_id)["state"] == TaskState.COMPENSATION_FAILED
    store.owner("UPDATE alert SET raised_at = raised_at - interval '1 hour'")
    await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="it is mended"))
    await sweep(store)
    assert len(alerts(store, "undo_stalled")) == 1
    since(store, task_id, 12)
    await sweep(store)
    assert len(alerts(store, "undo_stalled")) == 2


@pytest.fixture(scope="module")
def planner(templates: EmbeddedPostgres) -> Iterator[Planner]:
    """A store with many closed tasks, a backlog of two versions, and many that are held."""
    with Databases(templates) as databases, psycopg.connect(databases.owner, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        put(connection, "closed-", CLOSED, 20_000)
        put(connection, "due-", ["Pending", "Pending", "Compensating"], 5_000, due="-1 hour")
        put(connection, "held-", ["Processing", "Compensating"], 5_000, held=True, due="-1 hour")
        connection.execute("UPDATE task SET version = 2 WHERE task_id LIKE 'due-%' AND task_id > 'due-3'")
        connection.execute(STEPS)
        connection.execute("VACUUM ANALYZE")
        yield Planner(connection)


@pytest.mark.demand("D4", "D10", "D11")
@pytest.mark.parametrize("mode", ["custom", "generic"])
def test_watch_reads_no_more_than_the_first_rows_of_each_index(planner: Planner, mode: str) -> None:
    most = 100
    params = {"most": most, "stuck_after_s": 300.0, "undo_stalled_after_s": 600.0, "worker_gone_s": 30.0}
    found = planner.explain("watch_stuck", params, mode)
    assert {s.index for s in found} == {"task_claimable", "task_being_undone"}
    assert sum(s.read for s in found if s.index == "task_being_undone") == most
    kinds = 4  # two versions, each to be done and to be undone
    assert sum(s.read for s in found if s.index == "task_claimable") == kinds * most + kinds
