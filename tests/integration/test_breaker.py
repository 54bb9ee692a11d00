"""Circuit breakers in the store: when they open and close, what they hold back, and at which pace they let go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from uuid import uuid4

import pytest

from domain.attempts import AttemptEnd
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from store.admission import NewTask
from store.reads import Reads
from tests.integration.store_bench import BREAKER, LOADED, StoreBench, begin, shipped

SLOTS = 1_000


@pytest.fixture
def store(store: StoreBench) -> StoreBench:
    """The state store, empty, which has not looked at what is due yet."""
    store.breakers._looked_at = float("-inf")
    return store


def breaker(store: StoreBench, name: str) -> dict[str, object]:
    """The row of a service."""
    (row,) = store.owner("SELECT * FROM service WHERE name = %(name)s", name=name)
    return row


def moves(store: StoreBench, name: str) -> list[tuple[object, ...]]:
    """What the breaker of a service did: kind, state before, state after, the task or person, the cause or reason."""
    rows = store.owner("SELECT * FROM service_event WHERE service = %(name)s ORDER BY id", name=name)
    return [
        (r["kind"], r["state_from"], r["state_to"], r["task_id"] or r["requester"], r["cause"] or r["reason"])
        for r in rows
    ]


async def failed(store: StoreBench, name: str, task_id: str = "t", cause: str = "503") -> bool:
    """One more attempt fails; whether the breaker opened by that."""
    return await store.breakers.failed(name, task_id, cause, report=uuid4().hex)


async def open_breaker(store: StoreBench, name: str) -> None:
    """Let attempts fail in a row until the breaker opens."""
    assert [await failed(store, name) for _ in range(BREAKER.failures)][-1]


async def leased(store: StoreBench, name: str) -> str | None:
    """The task that may probe a service, after one look at what is due."""
    store.breakers._looked_at = float("-inf")
    await store.breakers.lease(LOADED)
    task = breaker(store, name)["probe_task"]
    return None if task is None else str(task)


async def claimable(store: StoreBench) -> list[str]:
    """Ids of the tasks that a worker gets."""
    return [c.task.task_id for c in await store.store.claims.claim("w", LOADED, SLOTS)]


@pytest.mark.failure(77)
@pytest.mark.demand("C8")
async def test_breaker_opens_with_one_alert_after_failures_in_a_row(store: StoreBench) -> None:
    opened = [await failed(store, "stock") for _ in range(BREAKER.failures - 1)]
    await store.breakers.answered("stock", "t")
    opened += [await failed(store, "stock") for _ in range(BREAKER.failures + 2)]
    assert opened == [False] * 4 + [True] + [False] * 2
    assert breaker(store, "stock")["state"] == "open"
    alerts = store.owner("SELECT kind, message FROM alert")
    assert [(a["kind"], a["message"]) for a in alerts] == [
        ("breaker_open", "service stock: 3 attempts in a row failed, last: 503")
    ]


@pytest.mark.demand("C8")
async def test_failure_reported_again_is_counted_once_also_behind_others(store: StoreBench) -> None:
    for report in ("a", "b", "a"):
        assert not await store.breakers.failed("stock", "t", "503", report=report)
    assert breaker(store, "stock")["failures"] == 2
    await store.breakers.answered("stock", "t")
    await store.breakers.failed("stock", "t", "503", report="b")
    assert breaker(store, "stock")["failures"] == 0


@pytest.mark.demand("C8")
async def test_claim_passes_over_tasks_whose_next_step_needs_an_open_service(store: StoreBench) -> None:
    await store.submitted("needs-stock")
    await store.submitted("needs-cloud", "provisioning")
    await open_breaker(store, "stock")
    assert await claimable(store) == ["needs-cloud"]


@pytest.mark.demand("C8")
async def test_step_of_an_open_service_is_released_at_no_cost(
    store: StoreBench,
) -> None:
    hold = await store.begun("t")
    await open_breaker(store, "payments")
    report = await store.store.forward.advance(hold, done="stock", result={"r": 1}, calls=1, begin=begin("charge"))
    assert (report.end, report.grant) == (None, None), "the boundary itself is written"
    report = await store.store.forward.advance(hold, begin=begin("charge"))
    task = await store.task("t")
    assert report.end is AttemptEnd.RELEASED
    assert "breaker" in report.cause
    assert (task.state, task.locked_by) == (TaskState.PENDING, None)
    assert (task.step("charge").calls_left, task.step("charge").state) == (9, "NotStarted")
    assert store.owner("SELECT failure_count AS n FROM task") == [{"n": 0}]
    assert await claimable(store) == []


@pytest.mark.demand("C8")
async def test_undo_that_needs_an_open_service_waits_too(store: StoreBench) -> None:
    await store.begun("t", step="charge")
    await open_breaker(store, "payments")
    await store.store.requests.undo(UndoRequest(task_id="t", requester="ada", reason="why not"))
    assert await claimable(store) == []
    await store.breakers.force("payments", "closed", requester="ada", reason="it is well")
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    assert await claimable(store) == ["t"]


@pytest.mark.failure(77)
@pytest.mark.demand("C8")
async def test_one_task_at_a_time_probes_and_only_under_its_lease(store: StoreBench) -> None:
    for name in ("a", "b", "c"):
        await store.submitted(name)
    await open_breaker(store, "stock")
    probe = await leased(store, "stock")
    assert probe == "a"
    assert await claimable(store) == ["a"]
    assert await leased(store, "stock") == "a", "no second probe while the lease lasts"
    assert await claimable(store) == []
    store.expire("a")
    store.owner("UPDATE service SET probe_until = clock_timestamp()")
    assert await leased(store, "stock") == "b", "the probe died: the next one is chosen"
    assert await claimable(store) == ["b"]


@pytest.fixture
def side_by_side(store: StoreBench) -> Iterator[None]:
    """Orders, as if stock and charge began side by side."""
    path = "{steps,charge,after}"
    store.owner("UPDATE definition SET policies = jsonb_set(policies, %(p)s, '[]') WHERE name = 'order'", p=path)
    yield
    store.owner(
        """UPDATE definition SET policies = jsonb_set(policies, %(p)s, '["stock"]') WHERE name = 'order'""", p=path
    )


@pytest.mark.failure(77)
@pytest.mark.demand("C8")
@pytest.mark.usefixtures("side_by_side")
async def test_services_that_open_together_are_probed_by_a_task_of_both(store: StoreBench) -> None:
    for name in ("a", "b"):
        await store.submitted(name)
    await open_breaker(store, "stock")
    await open_breaker(store, "payments")
    for _ in range(20):  # each look is at one of those that are due
        await leased(store, "stock")
    probes = {str(breaker(store, name)["probe_task"]) for name in ("stock", "payments")}
    assert len(probes) == 1, probes
    assert set(await claimable(store)) == probes


@pytest.mark.failure(77)
@pytest.mark.demand("C8")
@pytest.mark.usefixtures("side_by_side")
async def test_task_held_up_by_one_service_probes_no_other(store: StoreBench) -> None:
    await store.submitted("needs-both")
    await store.submitted("needs-stock", "provisioning")
    store.owner("UPDATE step SET service = 'stock' WHERE task_id = 'needs-stock'")
    await store.breakers.force("payments", "open", requester="ada", reason="they move house")
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "needs-stock"
    assert await claimable(store) == ["needs-stock"]


@pytest.mark.demand("C8", "A6")
async def test_service_is_not_probed_by_a_submission_that_is_not_confirmed(store: StoreBench) -> None:
    await store.admission.admit(NewTask("t-1", shipped("order"), "digest", "test", None))
    await store.submitted("t-2")
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "t-2"


@pytest.mark.demand("C8")
async def test_failed_probe_keeps_a_breaker_open_whatever_others_report(store: StoreBench) -> None:
    await store.submitted("a")
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "a"
    await store.breakers.answered("stock", "somebody else's late answer")
    assert breaker(store, "stock")["state"] == "open"
    await failed(store, "stock", "a", "504")
    row = breaker(store, "stock")
    assert (row["state"], row["probe_task"], row["openings"], row["cause"]) == ("open", None, 2, "504")


@pytest.mark.failure(80)
@pytest.mark.demand("C8", "D12")
async def test_waiting_tasks_go_at_a_rising_pace_after_the_probe(store: StoreBench) -> None:
    names = [f"t{n:03d}" for n in range(60)]
    for name in names:
        await store.submitted(name)
    await store.submitted("other", "provisioning")
    await open_breaker(store, "stock")
    probe = await leased(store, "stock")
    assert probe == names[0]
    await store.breakers.answered("stock", names[0])
    assert breaker(store, "stock")["state"] == "closed"
    rows = store.owner(
        "SELECT t.task_id, (e.detail ->> 'delay_s')::float8 AS delay_s"
        " FROM task AS t JOIN event AS e ON e.task_id = t.task_id AND e.kind = 'noted' ORDER BY t.task_id"
    )
    assert [r["task_id"] for r in rows] == names[1:], "neither the probe, nor what does not need the service"
    delays = [r["delay_s"] for r in rows]
    assert max(b - a for a, b in pairwise(delays)) < 2.0
    ramp, per_s = BREAKER.ramp.total_seconds(), BREAKER.per_s
    first_second = sum(d < 1 for d in delays)
    assert first_second <= per_s / ramp, "almost none at first"
    for start in range(0, int(max(delays))):
        assert sum(start <= d < start + 1 for d in delays) <= per_s + 2, "never more than the pace, but for the jitter"
    assert max(delays) == pytest.approx(ramp / 2 + len(delays) / per_s, abs=0.2)


@pytest.mark.failure(80)
@pytest.mark.demand("D12", "A7")
async def test_new_task_is_claimed_beside_those_that_waited_for_a_breaker(store: StoreBench) -> None:
    """The pace is of the backlog: what comes now comes at the rate at which it is taken in."""
    await store.submitted("probe")
    await store.submitted("waited")
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "probe"
    await store.breakers.answered("stock", "probe")
    await store.submitted("new")
    assert set(await claimable(store)) == {"probe", "new"}


@pytest.mark.failure(80)
@pytest.mark.demand("C8", "D12")
@pytest.mark.parametrize("by", ["its probe", "a person"])
async def test_breaker_closes_although_a_waiting_task_can_not_be_let_go(store: StoreBench, by: str) -> None:
    """A row that refuses to be written costs the others their pace, and not the service."""
    for name in ("first", "good", "odd"):
        await store.submitted(name)
    if by == "its probe":
        await open_breaker(store, "stock")
        assert await leased(store, "stock") == "first"
    else:
        await store.breakers.force("stock", "open", requester="ada", reason="maintenance")
    store.owner(
        "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)"
        " SELECT task_id, last_event + 1, 'noted', state, epoch, 'x', '{}' FROM task WHERE task_id = 'odd'"
    )
    if by == "its probe":
        await store.breakers.answered("stock", "first")
    else:
        await store.breakers.force("stock", None, requester="ada", reason="done")
    assert breaker(store, "stock")["state"] == "closed"
    assert "good" in [c.task.task_id for c in await store.store.claims.claim("worker", LOADED, 1, ["good"])]
    (alert,) = store.owner("SELECT message FROM alert WHERE kind = 'not_paced'")
    assert alert["message"].startswith("those that waited for service stock go without a pace: ")


@pytest.mark.demand("C8", "G4")
async def test_person_has_the_last_word_on_a_breaker(store: StoreBench) -> None:
    await store.submitted("t")
    await store.breakers.force("stock", "open", requester="ada", reason="maintenance")
    assert await leased(store, "stock") is None, "what a person closed is not probed"
    assert await claimable(store) == []
    await store.breakers.force("stock", None, requester="ada", reason="done")
    row = breaker(store, "stock")
    assert (row["forced"], row["state"], row["forced_by"], row["forced_reason"]) == (None, "closed", "ada", "done")
    words = [a["message"] for a in store.owner("SELECT message FROM alert WHERE kind = 'breaker_forced' ORDER BY id")]
    assert words == ["service stock: open by ada: maintenance", "service stock: auto by ada: done"]
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    assert await claimable(store) == ["t"]


@pytest.mark.demand("C8", "G4")
async def test_every_move_of_a_breaker_is_recorded_with_who_and_why(store: StoreBench) -> None:
    for name in ("a", "b"):
        await store.submitted(name)
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "a"
    await failed(store, "stock", "b", "no probe's word")
    await failed(store, "stock", "a", "504")
    assert await leased(store, "stock") == "a"
    await store.breakers.answered("stock", "b")
    await store.breakers.answered("stock", "a")
    await store.breakers.answered("stock", "b")
    await store.breakers.force("stock", "open", requester="ada", reason="maintenance")
    await open_breaker(store, "stock")
    await store.breakers.force("stock", None, requester="ada", reason="done")
    assert moves(store, "stock") == [
        ("opened", "closed", "open", "t", "503"),
        ("probe", "open", "open", "a", None),
        ("probe_failed", "open", "open", "a", "504"),
        ("probe", "open", "open", "a", None),
        ("closed", "open", "closed", "a", None),
        ("by_hand", "closed", "forced open", "ada", "maintenance"),
        ("opened", "forced open", "forced open", "t", "503"),
        ("by_hand", "forced open", "closed", "ada", "done"),
    ]


@pytest.mark.demand("C8")
async def test_breaker_forced_closed_holds_nothing_back_whatever_fails(store: StoreBench) -> None:
    await store.submitted("t")
    await store.breakers.force("stock", "closed", requester="ada", reason="it lies")
    await open_breaker(store, "stock")
    assert await claimable(store) == ["t"]


@pytest.mark.demand("C8")
async def test_task_waits_if_a_due_step_needs_an_open_service(store: StoreBench) -> None:
    """A fork over two services: an attempt could not go on without the one that is out, whatever the order of steps."""
    await store.submitted("t", "provisioning")
    store.owner("UPDATE step SET service = 'disks' WHERE name = 'disk'")
    await open_breaker(store, "disks")
    assert await claimable(store) == []
    assert await leased(store, "disks") == "t", "and it may be the one that probes"
    assert await claimable(store) == ["t"]


@pytest.mark.demand("C8")
async def test_step_not_yet_due_keeps_nobody_from_those_before(store: StoreBench) -> None:
    await store.submitted("t", "provisioning")
    store.owner("UPDATE step SET service = 'machines' WHERE name = 'machine'")
    await open_breaker(store, "machines")
    assert await claimable(store) == ["t"]


@pytest.mark.demand("C8")
async def test_probe_held_beyond_its_lease_is_still_the_only_one(store: StoreBench) -> None:
    for name in ("a", "b"):
        await store.submitted(name)
    await open_breaker(store, "stock")
    assert await leased(store, "stock") == "a"
    assert await claimable(store) == ["a"]
    store.owner("UPDATE service SET probe_until = clock_timestamp()")
    assert await leased(store, "stock") == "a"
    assert await claimable(store) == []
    await store.breakers.answered("stock", "a")
    assert breaker(store, "stock")["state"] == "closed"


@pytest.mark.demand("C8", "F13")
async def test_every_service_of_a_definition_is_listed_with_its_breaker(store: StoreBench, reads: Reads) -> None:
    await store.breakers.force("mail", "closed", requester="cli:anna", reason="it is well")
    rows, now = await reads.services()
    assert [r.name for r in rows] == ["cloud", "mail", "payments", "shipping", "stock"]
    assert [r.name for r in rows if r.forced] == ["mail"]
    assert {r.state for r in rows} == {"closed"}
    assert all(r.since <= now for r in rows)
