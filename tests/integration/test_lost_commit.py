"""A lost COMMIT acknowledgement: the connection dies after the commit, or before it; nobody notices a difference."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from chaos.proxy import Cut, Proxy
from domain.attempts import AttemptEnd, WriteResult
from domain.states import TaskState
from domain.undo_requests import UndoVerdict
from store.breakers import CircuitBreakers
from store.claims import Claim
from store.database import Database
from store.orders import Amendment
from store.snapshot import Snapshot
from store.state_store import StateStore
from testing.records import ORDER
from tests.integration.situations import REFUSED, asked, in_error, recovered, undo_begun
from tests.integration.store_bench import BREAKER, LOADED, StoreBench, begin, undo


@dataclass
class Line:
    """The state store behind a proxy."""

    store: StateStore
    proxy: Proxy


@pytest.fixture
async def line(store: StoreBench) -> AsyncIterator[Line]:
    """The same state store, behind a proxy."""
    parts = urlsplit(store.databases.app)
    async with Proxy((parts.hostname or "", parts.port or 0)) as proxy:
        place = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
        async with Database(urlunsplit(parts._replace(netloc=place)), name="state store", size=2) as database:
            yield Line(StateStore(database), proxy)


@pytest.fixture(params=Cut, ids=lambda cut: cut.value)
def cut(request: pytest.FixtureRequest) -> Cut:
    """When the connection dies."""
    found: Cut = request.param
    return found


async def through(line: Line, cut: Cut, write: Awaitable[Any]) -> Any:
    """What a write returns whose connection is cut."""
    line.proxy.arm(cut)
    answer = await write
    assert line.proxy.effects[cut] == 1
    return answer


Prepare = Callable[[StoreBench, str], Awaitable[Any]]
Write = Callable[[StateStore, Any], Awaitable[Any]]


async def unstarted(store: StoreBench, task_id: str) -> Claim:
    """A claim whose run was not started."""
    await store.submitted(task_id)
    (claim,) = await store.store.claims.claim("worker", LOADED, 9, [task_id])
    return claim


BOUNDARY = {"done": "stock", "result": {"n": 1}, "calls": 1}
CASES: dict[str, tuple[Prepare, Write, str]] = {
    "advance": (
        lambda s, t: s.begun(t),
        lambda s, h: s.forward.advance(h, **BOUNDARY, begin=begin("charge")),  # type: ignore[arg-type]
        "advanced",
    ),
    "begin": (lambda s, t: s.claimed(t), lambda s, h: s.forward.advance(h, begin=begin("stock")), "advanced"),
    "last advance": (
        lambda s, t: s.begun(t, step="confirm"),
        lambda s, h: s.forward.advance(h, done="confirm", result={"n": 1}, calls=1),
        "processed",
    ),
    "undo_begin": (
        undo_begun,
        lambda s, h: s.undo.advance(h, begin=undo("charge")),
        "undo_advanced",
    ),
    "fail": (
        lambda s, t: s.begun(t),
        lambda s, h: s.forward.fail(h, "stock", REFUSED, unknown=False, then="undo"),
        "failed",
    ),
    "give_up": (lambda s, t: s.begun(t), lambda s, h: s.steps.give_up(h, "stock", "no more calls"), "gave_up"),
    "release": (
        lambda s, t: s.begun(t),
        lambda s, h: s.steps.release(h, "draining", step="stock", sent=0, delay=timedelta(0)),
        "released",
    ),
    "release of a claim": (
        unstarted,
        lambda s, c: s.claims.not_started(c, "no answer", pause=timedelta(0)),
        "released",
    ),
    "release of an undo": (
        undo_begun,
        lambda s, h: s.steps.release(h, "draining", step="charge", sent=None, delay=timedelta(0)),
        "released",
    ),
    "request_undo": (lambda s, t: s.submitted(t), lambda s, t: s.requests.undo(asked(t)), "undo_requested"),
    "resubmit": (
        in_error,
        lambda s, h: s.requests.resubmit(h.task_id, requester="anna", reason="corrected", changes={}),
        "resubmitted",
    ),
    "undo_advance": (
        undo_begun,
        lambda s, h: s.undo.advance(h, done="charge", calls=1, begin=undo("stock")),
        "undo_advanced",
    ),
    "undo_fail": (undo_begun, lambda s, h: s.undo.fail(h, "charge", REFUSED), "undo_failed"),
}


def comparable(answer: Any) -> Any:
    """An answer without what no two calls have in common: the id of the task, and the time left to the millisecond."""
    match answer:
        case WriteResult(grant=grant):
            return answer.model_copy(update={"grant": grant and (grant.calls, round(grant.within_s / 10))})
        case UndoVerdict():
            return (answer.verdict, answer.state)
        case None:
            return answer
        case (bool() as moved, Snapshot() as after):
            return (moved, after.state, after.step("stock").model_copy(update={"time_left_s": None}))
    raise AssertionError(answer)


@pytest.mark.failure(38)
@pytest.mark.demand("B2", "B11", "H9")
@pytest.mark.parametrize("name", CASES)
async def test_write_whose_connection_dies_says_and_does_what_it_would_have(
    store: StoreBench, line: Line, task_id: str, name: str, cut: Cut
) -> None:
    prepare, write, kind = CASES[name]
    undisturbed = await write(store.store, await prepare(store, f"{task_id}-0"))
    prepared = await prepare(store, task_id)
    before = store.row(task_id)["last_event"]
    disturbed = await through(line, cut, write(line.store, prepared))
    assert comparable(disturbed) == comparable(undisturbed)
    assert store.row(task_id)["last_event"] == before + 1
    assert store.kinds(task_id)[before:] == [kind]
    store.is_consistent(task_id)


@pytest.mark.failure(38)
@pytest.mark.demand("E3")
async def test_reservation_whose_acknowledgement_is_lost_is_granted_once(
    store: StoreBench, line: Line, task_id: str, cut: Cut
) -> None:
    hold = await store.claimed(task_id)
    report = await through(line, cut, line.store.forward.advance(hold, begin=begin("stock")))
    assert report.grant is not None
    assert report.grant.calls == 3
    step = store.step(task_id, "stock")
    assert (step["budget_left"], step["reserved"], step["outcome_unknown"]) == (6, 3, False)
    assert [name for _, name, _ in store.log(task_id)] == ["stock"]


@pytest.mark.failure(38)
@pytest.mark.demand("C5")
async def test_alert_of_a_fault_whose_acknowledgement_is_lost_is_raised_once(
    store: StoreBench, line: Line, task_id: str, cut: Cut
) -> None:
    hold = await store.begun(task_id)
    report = await through(line, cut, line.store.forward.fail(hold, "stock", REFUSED, unknown=False, then="error"))
    assert report.end is AttemptEnd.PERMANENT_FAULT
    assert len(store.owner("SELECT id FROM alert")) == 1


@pytest.mark.failure(38)
@pytest.mark.demand("C8")
async def test_failure_reported_with_a_lost_acknowledgement_counts_once(
    store: StoreBench, line: Line, cut: Cut
) -> None:
    services = CircuitBreakers(line.store.database, BREAKER)
    await through(line, cut, services.failed("stock", "t", "503", report="order/t/1:stock"))
    assert store.owner("SELECT failures, state FROM service") == [{"failures": 1, "state": "closed"}]


@pytest.mark.demand("C8", "G4")
async def test_service_decision_with_a_lost_acknowledgement_is_recorded_once(
    store: StoreBench, line: Line, cut: Cut
) -> None:
    services = CircuitBreakers(line.store.database, BREAKER)
    await through(line, cut, services.force("stock", "open", requester="ada", reason="maintenance"))
    assert store.owner("SELECT forced FROM service") == [{"forced": "open"}]
    assert store.owner("SELECT state_from, state_to FROM service_event") == [
        {"state_from": "closed", "state_to": "forced open"}
    ]
    assert [a["kind"] for a in store.owner("SELECT kind FROM alert")] == ["breaker_forced"]


@pytest.mark.failure(38)
@pytest.mark.demand("G4", "F1")
async def test_only_who_asked_is_told_that_it_was_accepted(store: StoreBench, line: Line, task_id: str) -> None:
    await store.submitted(task_id)
    first = await through(line, Cut.AFTER_COMMIT, line.store.requests.undo(asked(task_id)))
    second = await line.store.requests.undo(asked(task_id))
    assert (first.verdict, second.verdict) == ("accepted", "already")


@pytest.mark.failure(38)
@pytest.mark.demand("G1", "G4")
async def test_correction_whose_acknowledgement_is_lost_is_made_once(
    store: StoreBench, line: Line, task_id: str, cut: Cut
) -> None:
    await in_error(store, task_id)
    amendment = Amendment(task_id, {**ORDER, "currency": "CHF"}, 0)
    told = []

    async def amend() -> None:
        told.append(await store.orders.amend(amendment))

    resubmission = line.store.requests.resubmit(task_id, requester="anna", reason="corrected", changes={}, amend=amend)
    moved, _ = await through(line, cut, resubmission)
    assert (moved, set(told)) == (True, {True})
    assert store.kinds(task_id)[-2:] == ["failed", "resubmitted"]
    (record,) = store.orders_owner("SELECT record ->> 'currency' AS currency, amendments FROM business_record")
    assert record == {"currency": "CHF", "amendments": 1}


@pytest.mark.failure(38)
@pytest.mark.demand("B3", "D11")
async def test_claim_whose_acknowledgement_is_lost_is_found_by_its_deadline(
    store: StoreBench, line: Line, task_id: str, cut: Cut
) -> None:
    """The claimer can't know what it claimed; the claim's own deadline brings the row back, and nothing is counted."""
    await store.submitted(task_id)
    claims = await through(line, cut, line.store.claims.claim("worker", LOADED, 1))
    assert len(claims) == (1 if cut is Cut.BEFORE_COMMIT else 0)
    row = store.row(task_id)
    assert (row["state"], row["epoch"]) == (TaskState.PROCESSING, 1)
    await recovered(store, task_id)
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == (TaskState.PENDING, None, 0)
    assert store.kinds(task_id) == ["submitted", "confirmed", "claimed", "expired"]
    store.is_consistent(task_id)
