"""Undo in the state store: what is logged, in which order it is undone, and who may still ask for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from domain.attempts import AttemptEnd
from domain.states import StepState, TaskState
from store.claims import Hold
from tests.integration.situations import (
    AT_ONCE,
    REFUSED,
    asked,
    in_error,
    recovered,
    refund_refused,
    undo_begun,
    undo_failed,
    undoing,
)
from tests.integration.store_bench import StoreBench, begin, undo

# --- the compensation log -------------------------------------------------------------------------------------


@pytest.mark.failure(35)
@pytest.mark.demand("F2")
async def test_undo_is_logged_in_the_very_transaction_that_begins_the_step(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id, step="charge")
    (row,) = store.owner(
        "SELECT c.action, c.request, c.seq, c.xmin = s.xmin AS together, s.state FROM compensation AS c"
        " INNER JOIN step AS s ON s.task_id = c.task_id AND s.name = c.step WHERE c.step = 'charge'"
    )
    assert row == {
        "action": "payments.refund",
        "request": {"undo": "charge"},
        "seq": 2,
        "together": True,
        "state": "Running",
    }


async def test_step_without_an_undo_is_not_logged(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id, step="confirm")
    assert [name for _, name, _ in store.log(task_id)] == ["stock", "charge", "ship"]


@pytest.mark.demand("F3")
async def test_step_that_begins_again_keeps_its_place_in_the_log(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id, "provisioning")
    for name in ("disk", "address"):
        await store.store.forward.advance(hold, begin=begin(name, "provisioning"))
    first = store.log(task_id)
    assert [name for _, name, _ in first] == ["disk", "address"]
    await recovered(store, task_id)
    hold = await store.claim(task_id)
    for name in ("address", "disk"):
        assert (await store.store.forward.advance(hold, begin=begin(name, "provisioning"))).grant is not None
    assert store.log(task_id) == first


@pytest.mark.failure(33)
@pytest.mark.demand("F3", "F4")
async def test_undo_runs_from_the_step_that_began_last_to_the_first(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id, "ship")
    names = [e.step for e in (await store.task(task_id)).undo_log]
    assert names == ["ship", "charge", "stock"]
    for name in names:
        assert (await store.store.undo.advance(hold, begin=undo(name))).grant is not None
        report = await store.store.undo.advance(hold, done=name, calls=1)
    assert report.end is AttemptEnd.COMPENSATED
    assert store.log(task_id) == [(1, "stock", "Undone"), (2, "charge", "Undone"), (3, "ship", "Undone")]
    assert [s.state for s in (await store.task(task_id)).steps] == [StepState.UNDONE] * 3 + [StepState.NOT_STARTED]
    store.is_consistent(task_id)


@pytest.mark.demand("F3")
@pytest.mark.parametrize("wrong", ["stock", "charge"])
async def test_undo_of_a_step_before_its_turn_is_not_begun(store: StoreBench, task_id: str, wrong: str) -> None:
    hold = await undoing(store, task_id, "ship")
    before = store.contents(task_id)
    assert (await store.store.undo.advance(hold, begin=undo(wrong))).grant is None
    assert store.contents(task_id) == before


@pytest.mark.demand("F1")
async def test_task_that_has_begun_nothing_is_compensated_at_once(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    await store.store.requests.undo(asked(task_id))
    hold = await store.claim(task_id)
    for _ in range(2):
        assert (await store.store.undo.advance(hold)).end is AttemptEnd.COMPENSATED
    assert store.kinds(task_id) == ["submitted", "confirmed", "undo_requested", "claimed", "compensated"]


@pytest.mark.demand("F9")
async def test_failed_undo_says_what_is_undone_failed_and_not_tried(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id, "ship")
    await store.store.undo.advance(hold, begin=undo("ship"))
    await store.store.undo.advance(hold, done="ship", calls=1, begin=undo("charge"))
    await store.store.undo.fail(hold, "charge", {"step": "charge", "message": "never"})
    assert store.log(task_id) == [(1, "stock", "Logged"), (2, "charge", "Failed"), (3, "ship", "Undone")]
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["error"]["message"]) == ("CompensationFailed", None, "never")
    (alert,) = store.owner("SELECT kind, message FROM alert WHERE task_id = %(id)s", id=task_id)
    assert alert == {"kind": "compensation_failed", "message": "undo of charge: never"}


@pytest.mark.failure(31)
@pytest.mark.demand("F5", "C15")
@pytest.mark.parametrize("unknown", [True, False])
async def test_age_of_a_step_counts_from_its_first_possible_effect(
    store: StoreBench, task_id: str, unknown: bool
) -> None:
    """Whoever calls again, and whenever; a call that was refused for certain has left nothing that could be undone."""
    await store.begun(task_id)
    store.owner("UPDATE step SET key_since = key_since - interval '40 days' WHERE name = 'stock'")
    await recovered(store, task_id)
    hold = await store.claim(task_id)
    assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=unknown, then="undo")
    hold = await store.claim(task_id)
    grant = (await store.store.undo.advance(hold, begin=undo("stock"))).grant
    assert grant is not None
    assert grant.key_age_s == pytest.approx(40 * 24 * 3600 if unknown else 0, abs=60)


async def undone(store: StoreBench, hold: Hold, *steps: str) -> None:
    """Undo these steps, of which nothing else is left."""
    for step in steps:
        await store.store.undo.advance(hold, begin=undo(step))
        await store.store.undo.advance(hold, done=step, calls=1)


@pytest.mark.failure(34)
@pytest.mark.demand("F9")
async def test_compensated_task_shows_why_it_was_undone(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.store.forward.fail(hold, "charge", {"step": "charge", "message": "declined"}, unknown=True, then="undo")
    await store.store.undo.advance(await store.claim(task_id), begin=undo("charge"))
    await recovered(store, task_id)
    await undone(store, await store.claim(task_id), "charge", "stock")
    row = store.row(task_id)
    assert (row["state"], row["error"]["message"]) == ("Compensated", "declined")


@pytest.mark.failure(34)
@pytest.mark.demand("F9", "F11")
async def test_undo_repeated_after_a_failure_ends_without_an_error(store: StoreBench, task_id: str) -> None:
    await undo_failed(store, task_id)
    assert (await store.store.requests.undo(asked(task_id))).verdict == "accepted"
    await undone(store, await store.claim(task_id), "charge", "stock")
    row = store.row(task_id)
    assert (row["state"], row["error"]) == ("Compensated", None)


# --- the key of an undo ---------------------------------------------------------------------------------------


async def generations(store: StoreBench, task_id: str) -> dict[str, int]:
    """Of the keys of the undos, by step, last begun first; those that are left, as the next attempt is told them."""
    rows = store.owner("SELECT step, generation FROM compensation WHERE task_id = %(id)s ORDER BY seq DESC", id=task_id)
    found = {r["step"]: r["generation"] for r in rows}
    told = {e.step: e.generation for e in (await store.task(task_id)).as_run({}).undo_log}
    assert told.items() <= found.items()
    return found


@pytest.mark.failure(34)
@pytest.mark.demand("C2", "F11")
async def test_undo_has_the_same_key_in_every_attempt_whatever_ends_them(store: StoreBench, task_id: str) -> None:
    hold = await undo_begun(store, task_id)
    await recovered(store, task_id)
    hold = await store.claim(task_id)
    await store.store.undo.advance(hold, begin=undo("charge"))
    await store.store.steps.release(hold, "draining", step="charge", sent=None, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.undo.advance(hold, begin=undo("charge"))
    await store.store.steps.give_up(hold, "charge", "no more calls")
    await recovered(store, task_id)
    assert await generations(store, task_id) == {"charge": 0, "stock": 0}


@pytest.mark.failure(32)
@pytest.mark.demand("F6", "C2")
async def test_second_undo_after_a_quarantine_has_another_key_which_stays(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    store.owner("UPDATE step SET quarantine_s = 60 WHERE name = 'charge'")
    await store.store.undo.advance(hold, begin=undo("charge"))
    assert await generations(store, task_id) == {"charge": 0, "stock": 0}
    assert (await store.store.undo.advance(hold, done="charge", calls=1)).end is AttemptEnd.RELEASED
    for _ in range(2):
        assert await generations(store, task_id) == {"charge": 1, "stock": 0}
        hold = await store.claim(task_id)
        await store.store.undo.advance(hold, begin=undo("charge"))
        await recovered(store, task_id)
    hold = await store.claim(task_id)
    await store.store.undo.advance(hold, begin=undo("charge"))
    await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert await generations(store, task_id) == {"charge": 1, "stock": 0}


@pytest.mark.failure(34)
@pytest.mark.demand("F9", "C2")
async def test_repeated_undo_has_a_new_key_where_not_done(store: StoreBench, task_id: str) -> None:
    await refund_refused(store, task_id)
    for n in range(1, 3):
        assert (await store.store.requests.undo(asked(task_id))).verdict == "accepted"
        assert (await store.store.requests.undo(asked(task_id))).verdict == "already"
        assert await generations(store, task_id) == {"ship": 0, "charge": n, "stock": n}
        hold = await store.claim(task_id)
        await store.store.undo.advance(hold, begin=undo("charge"))
        await store.store.undo.fail(hold, "charge", REFUSED)


# --- undo on request ------------------------------------------------------------------------------------------


@pytest.mark.failure(36)
@pytest.mark.demand("D8", "F1", "A8")
@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("Pending", "accepted"),
        ("Processing", "accepted"),
        ("Processed", "accepted"),
        ("Error", "accepted"),
        ("Compensating", "already"),
        ("Compensating, held", "already"),
        ("Compensated", "already"),
        ("CompensationFailed", "accepted"),
    ],
)
async def test_undo_request_is_answered_in_every_state(
    store: StoreBench, task_id: str, state: str, verdict: str
) -> None:
    async def compensating() -> None:
        await store.begun(task_id)
        await store.store.requests.undo(asked(task_id))

    async def compensated() -> None:
        await store.submitted(task_id)
        await store.store.requests.undo(asked(task_id))
        await store.store.undo.advance(await store.claim(task_id))

    made: dict[str, Callable[[], Awaitable[Any]]] = {
        "Pending": lambda: store.submitted(task_id),
        "Processing": lambda: store.begun(task_id),
        "Processed": lambda: store.processed(task_id),
        "Error": lambda: in_error(store, task_id),
        "Compensating": compensating,
        "Compensating, held": lambda: undoing(store, task_id),
        "Compensated": compensated,
        "CompensationFailed": lambda: undo_failed(store, task_id),
    }
    await made[state]()
    before = store.contents(task_id)
    assert store.row(task_id)["state"] == state.split(",", maxsplit=1)[0]
    found = await store.store.requests.undo(asked(task_id))
    assert found.verdict == verdict
    assert found.state == store.row(task_id)["state"]
    if verdict == "already":
        assert store.contents(task_id) == before
        return
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Compensating", None, 0)
    (event,) = store.owner("SELECT * FROM event WHERE task_id = %(id)s ORDER BY number DESC LIMIT 1", id=task_id)
    assert (event["kind"], event["actor"], event["detail"]["reason"]) == ("undo_requested", "anna", "by mistake")
    store.is_consistent(task_id)


async def test_undo_of_a_task_that_is_not_there_is_not_found(store: StoreBench) -> None:
    assert (await store.store.requests.undo(asked("nobody"))).verdict == "not_found"


@pytest.mark.demand("F1", "F12")
@pytest.mark.parametrize("how", ["running", "completed", "failed with an unknown outcome"])
async def test_undo_past_the_pivot_is_refused_naming_it(store: StoreBench, task_id: str, how: str) -> None:
    if how == "completed":
        await store.processed(task_id, "provisioning")
    else:
        hold = await store.begun(task_id, "provisioning", "name")
        if how != "running":
            report = await store.store.forward.fail(hold, "name", REFUSED, unknown=True, then="undo")
            assert report.end is AttemptEnd.PERMANENT_FAULT
            assert store.row(task_id)["state"] == "Error"
    before = store.contents(task_id)
    found = await store.store.requests.undo(asked(task_id))
    assert found.verdict == "past_pivot"
    assert "step name" in found.message
    assert store.contents(task_id) == before


@pytest.mark.demand("F12", "C5")
async def test_pivot_that_was_refused_with_certainty_leaves_the_way_back_open(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, "provisioning", "name")
    await store.store.forward.fail(hold, "name", REFUSED, unknown=False, then="undo")
    row = store.row(task_id)
    assert (row["state"], row["locked_by"]) == ("Compensating", None)
    assert store.owner("SELECT * FROM alert") == []


@pytest.mark.failure(37)
@pytest.mark.demand("B2", "F1", "G6")
async def test_cancel_of_a_stale_run_undoes_nothing(store: StoreBench, task_id: str) -> None:
    stale = await store.begun(task_id)
    await recovered(store, task_id)
    successor = await store.claim(task_id)
    before = store.contents(task_id)
    found = await store.store.requests.undo(asked(task_id, stale.locked_by))
    assert (found.verdict, found.state) == ("not_holder", TaskState.PROCESSING)
    assert store.contents(task_id) == before
    assert (await store.store.requests.undo(asked(task_id, successor.locked_by))).verdict == "accepted"


@pytest.mark.failure(34)
@pytest.mark.demand("E4", "F1", "F9")
async def test_undo_repeated_after_a_failure_has_a_fresh_budget(store: StoreBench, task_id: str) -> None:
    await undo_failed(store, task_id)
    assert store.step(task_id, "charge")["undo_budget_left"] == 25
    await store.store.requests.undo(asked(task_id))
    step = store.step(task_id, "charge")
    assert (step["undo_budget_left"], step["undo_budget"]) == (30, 35)
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold, begin=undo("charge"))).grant is not None
    await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert (await store.store.undo.advance(hold, done="stock", calls=1)).end is AttemptEnd.COMPENSATED


@pytest.mark.demand("F12")
@pytest.mark.parametrize(
    ("state", "unknown", "past"),
    [
        ("NotStarted", False, False),
        ("Running", False, True),
        ("Completed", False, True),
        ("Failed", True, True),
        ("Failed", False, False),
        ("Undone", False, False),
    ],
)
async def test_task_is_past_a_pivot_that_may_have_an_effect(
    store: StoreBench, task_id: str, state: str, unknown: bool, past: bool
) -> None:
    await store.submitted(task_id, "provisioning")
    store.owner(
        "UPDATE step SET state = %(state)s, outcome_unknown = %(unknown)s, complete_by = clock_timestamp()"
        " WHERE name = 'name'",
        state=state,
        unknown=unknown,
    )
    (row,) = store.owner("SELECT past_pivot(%(t)s) AS past, past_pivot(%(t)s, 'name') AS ignored", t=task_id)
    assert row == {"past": past, "ignored": False}


@pytest.mark.failure(34)
@pytest.mark.demand("F8", "G2")
async def test_compensated_task_tells_no_fault_of_its_undo(store: StoreBench, task_id: str) -> None:
    """Its undo expired, was refused, and was asked for again: that is in its events."""
    hold = await store.begun(task_id)
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=True, then="undo")
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold, begin=undo("stock"))).grant is not None
    store.expire(task_id)
    await recovered(store, task_id)
    assert store.row(task_id)["error"] == REFUSED, "why it is being undone"
    hold = await store.claim(task_id)
    await store.store.undo.fail(hold, "stock", {"message": "never"})
    await store.store.requests.undo(asked(task_id))
    hold = await store.claim(task_id)
    await store.store.undo.advance(hold, begin=undo("stock"))
    report = await store.store.undo.advance(hold, done="stock", calls=1)
    assert (report.end, store.row(task_id)["error"]) == (AttemptEnd.COMPENSATED, None)


@pytest.mark.failure(34)
@pytest.mark.demand("F8", "G2")
async def test_attempt_that_ends_is_told_the_states_of_all_steps(store: StoreBench, task_id: str) -> None:
    """Also of those that were undone before: what it writes may have been written already."""
    hold = await undo_begun(store, task_id)
    await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))
    wanted = {"stock": "Undone", "charge": "Undone", "ship": "NotStarted", "confirm": "NotStarted"}
    for _ in range(2):
        report = await store.store.undo.advance(hold, done="stock", calls=1)
        assert (report.end, report.steps) == (AttemptEnd.COMPENSATED, wanted)
    assert (await store.store.undo.advance(hold, begin=undo("charge"))).steps == wanted
