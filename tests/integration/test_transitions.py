"""Transitions of the state store, against PostgreSQL directly: who may write, what is reserved, what is logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from domain.messages import End, Report, UndoRequest
from domain.states import StepState, TaskState
from store.database import Database
from store.state_store import Hold, StateStore
from store.supervision import ExpiredTask
from supervisor.decide import decide
from tests.integration.store_bench import LOADED, RUN, StoreBench, begin, undo

REFUSED = {"step": "stock", "code": "sold_out", "message": "there is none"}
AT_ONCE = timedelta(0)
WINDOW = timedelta(days=7)


def asked(task_id: str, holder: str | None = None) -> UndoRequest:
    """A person asks for undo."""
    return UndoRequest(task_id=task_id, requester="anna", reason="by mistake", holder=holder)


async def in_error(store: StoreBench, task_id: str, *, unknown: bool = False) -> Hold:
    """A task in Error, because its first step was refused for good."""
    hold = await store.begun(task_id)
    await store.store.fail(hold, "stock", REFUSED, unknown=unknown, then="error")
    return hold


async def undoing(store: StoreBench, task_id: str, upto: str = "charge") -> Hold:
    """A task whose steps up to `upto` were begun, and whose undo was claimed; no undo has begun."""
    await store.begun(task_id, step=upto)
    await store.store.request_undo(asked(task_id))
    return await store.claim(task_id)


async def undo_failed(store: StoreBench, task_id: str) -> Hold:
    """A task in CompensationFailed: the undo of the step that began last was refused for good."""
    hold = await undoing(store, task_id)
    assert (await store.store.undo_advance(hold, begin=undo("charge"))).grant is not None
    report = await store.store.undo_fail(hold, "charge", {"step": "charge", "message": "never"})
    assert report.end is End.UNDO_FAILED
    return hold


async def expired(store: StoreBench, task_id: str) -> ExpiredTask:
    """The task as the Supervisor reads it, once its deadline is over."""
    store.expire(task_id)
    page = await store.supervision.expired(window=WINDOW, page=100, after=(None, ""))
    return next(t for t in page if t.task_id == task_id)


async def recovered(store: StoreBench, task_id: str) -> None:
    """Let a held task expire, and be recovered as the Supervisor decides."""
    assert await store.supervision.recover([decide(await expired(store, task_id))], "supervisor") != []


# --- claims ---------------------------------------------------------------------------------------------------


@pytest.mark.demand("B1", "B3")
async def test_claim_holds_the_task_under_its_attempts_id_until_a_deadline(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    task = await store.task(task_id)
    assert hold.locked_by == f"order/{task_id}/1"
    assert (task.state, task.epoch, task.locked_by, task.run_id) == (TaskState.PROCESSING, 1, hold.locked_by, None)
    assert 0 < (task.time_left_s or 0) <= 10
    assert store.kinds(task_id) == ["submitted", "claimed"]


@pytest.mark.demand("B1")
async def test_claim_takes_no_more_than_the_workers_free_slots_over_all_definitions(store: StoreBench) -> None:
    for n in range(4):
        await store.submitted(f"o-{n}")
        await store.submitted(f"p-{n}", "provisioning")
    assert len(await store.store.claim("worker", LOADED, 3)) == 3
    assert len(await store.store.claim("worker", LOADED, 3)) == 0
    assert len(await store.store.claim("worker", LOADED, 5)) == 2
    assert len(await store.store.claim("another", LOADED, 10)) == 3


@pytest.mark.demand("B1", "B10")
async def test_claim_passes_over_a_row_that_somebody_else_has_locked(store: StoreBench) -> None:
    for n in range(3):
        await store.submitted(f"t-{n}")
    with psycopg.connect(store.databases.owner) as other:
        other.execute("SELECT 1 FROM task WHERE task_id = 't-1' FOR UPDATE")
        claims = await store.store.claim("worker", LOADED, 10)
    assert sorted(c.task.task_id for c in claims) == ["t-0", "t-2"]


async def test_claim_takes_only_what_the_worker_has_loaded_and_what_is_due(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    assert await store.store.claim("worker", [("order", 2), ("provisioning", 1)], 10) == []
    store.owner("UPDATE task SET not_before = clock_timestamp() + interval '1 hour'")
    assert await store.store.claim("worker", LOADED, 10) == []


@pytest.mark.demand("B1", "B10")
async def test_of_two_claimers_exactly_one_wins_in_each_of_200_rounds(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    async with Database(store.databases.app, name="state store", size=2) as database:
        other = StateStore(database)
        for number in range(1, 201):
            won = await asyncio.gather(store.store.claim("a", LOADED, 1), other.claim("b", LOADED, 1))
            (claim,) = [c for claims in won for c in claims]
            assert claim.task.epoch == number
            report = await other.release_unstarted(claim, "next round", AT_ONCE)
            assert report.end is End.RELEASED
    store.is_consistent(task_id)


@pytest.mark.demand("B3")
async def test_claim_whose_run_has_begun_is_not_released_as_unstarted(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    (claim,) = await store.store.claim("worker", LOADED, 1)
    hold = Hold(task_id, claim.locked_by, RUN)
    assert (await store.store.advance(hold, begin=begin("stock"))).grant is not None
    before = store.contents(task_id)
    report = await store.store.release_unstarted(claim, "no answer", AT_ONCE)
    assert report.end is End.SUPERSEDED
    assert store.contents(task_id) == before


# --- the holder, and nobody else ------------------------------------------------------------------------------

FORWARD: dict[str, Callable[[StateStore, Hold], Awaitable[Report]]] = {
    "advance": lambda s, h: s.advance(h, done="stock", result={}, calls=1, begin=begin("charge")),
    "begin": lambda s, h: s.advance(h, begin=begin("stock")),
    "fail": lambda s, h: s.fail(h, "stock", REFUSED, unknown=False, then="undo"),
    "give_up": lambda s, h: s.give_up(h, "stock", "no more calls"),
    "release": lambda s, h: s.release(h, "draining", step="stock", called=False, delay=AT_ONCE),
}
BACKWARD: dict[str, Callable[[StateStore, Hold], Awaitable[Report]]] = {
    "undo_advance": lambda s, h: s.undo_advance(h, done="charge", calls=1, begin=undo("stock")),
    "undo_begin": lambda s, h: s.undo_advance(h, begin=undo("charge")),
    "undo_fail": lambda s, h: s.undo_fail(h, "charge", REFUSED),
    "undo_give_up": lambda s, h: s.give_up(h, "charge", "no more calls"),
    "undo_release": lambda s, h: s.release(h, "draining", step="charge", called=False, delay=AT_ONCE),
}
WRITES = {**FORWARD, **BACKWARD}
TIMED = [name for name in WRITES if "release" not in name]


async def at_work(store: StoreBench, task_id: str, write: str) -> Hold:
    """A held task on which this write is due."""
    if write in FORWARD:
        return await store.begun(task_id)
    hold = await undoing(store, task_id)
    await store.store.undo_advance(hold, begin=undo("charge"))
    return hold


@pytest.mark.demand("B2", "B11")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("stranger", ["an older epoch", "another run of the same attempt"])
async def test_who_does_not_hold_the_task_changes_nothing_and_is_told(
    store: StoreBench, task_id: str, write: str, stranger: str
) -> None:
    hold = await at_work(store, task_id, write)
    strangers = {
        "an older epoch": Hold(task_id, f"order/{task_id}/{hold.epoch - 1}", RUN),
        "another run of the same attempt": Hold(task_id, hold.locked_by, "run-after-a-reset"),
    }
    before = store.contents(task_id)
    report = await WRITES[write](store.store, strangers[stranger])
    assert report.end is End.SUPERSEDED
    assert report.grant is None
    assert store.contents(task_id) == before


@pytest.mark.demand("B2", "C9", "C10")
@pytest.mark.parametrize("write", TIMED)
async def test_holder_that_comes_after_its_deadline_changes_nothing_and_is_told(
    store: StoreBench, task_id: str, write: str
) -> None:
    hold = await at_work(store, task_id, write)
    store.expire(task_id)
    before = store.contents(task_id)
    report = await WRITES[write](store.store, hold)
    assert report.end is End.DEADLINE_PASSED
    assert report.grant is None
    assert store.contents(task_id) == before


@pytest.mark.demand("B2")
@pytest.mark.parametrize("write", WRITES)
async def test_holder_in_time_may_write_and_its_event_names_its_run(
    store: StoreBench, task_id: str, write: str
) -> None:
    hold = await at_work(store, task_id, write)
    before = store.row(task_id)["last_event"]
    report = await WRITES[write](store.store, hold)
    assert report.end not in (End.SUPERSEDED, End.DEADLINE_PASSED)
    assert store.row(task_id)["last_event"] == before + 1
    (last,) = store.owner("SELECT detail FROM event WHERE task_id = %(id)s ORDER BY number DESC LIMIT 1", id=task_id)
    assert last["detail"]["run_id"] == RUN
    store.is_consistent(task_id)


async def test_holder_may_still_let_go_after_its_deadline_until_it_is_evicted(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    store.expire(task_id)
    report = await store.store.release(hold, "draining", step="stock", called=True, delay=AT_ONCE)
    assert report.end is End.RELEASED
    again = await store.store.release(hold, "draining", step="stock", called=True, delay=AT_ONCE)
    assert again.end is End.RELEASED
    store.is_consistent(task_id)


@pytest.mark.demand("B2", "B11")
async def test_holder_that_was_evicted_finds_its_successor_and_changes_nothing(store: StoreBench, task_id: str) -> None:
    zombie = await store.begun(task_id)
    await recovered(store, task_id)
    successor = await store.claim(task_id, "run-2")
    await store.store.advance(successor, begin=begin("stock"))
    before = store.contents(task_id)
    for write in FORWARD.values():
        assert (await write(store.store, zombie)).end is End.SUPERSEDED
    assert store.contents(task_id) == before
    assert (await store.store.advance(successor, done="stock", result={}, calls=1)).end is None


@pytest.mark.demand("B2", "F1")
async def test_run_whose_task_is_to_be_undone_is_told_so(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.request_undo(asked(task_id))
    assert (await FORWARD["advance"](store.store, hold)).end is End.UNDO_REQUESTED


async def test_write_about_a_task_that_is_not_there_is_superseded(store: StoreBench) -> None:
    report = await store.store.advance(Hold("nobody", "order/nobody/1", RUN), begin=begin("stock"))
    assert (report.end, report.cause) == (End.SUPERSEDED, "there is no task nobody")


# --- run twice ------------------------------------------------------------------------------------------------


@pytest.mark.demand("B8", "C13")
async def test_boundary_that_is_written_twice_returns_the_recorded_result_and_reserves_nothing(
    store: StoreBench, task_id: str
) -> None:
    hold = await store.begun(task_id)
    first = await store.store.advance(hold, done="stock", result={"n": 1}, calls=1, begin=begin("charge"))
    assert first.grant is not None
    assert first.result == {"n": 1}
    before = store.contents(task_id)
    second = await store.store.advance(hold, done="stock", result={"n": 2}, calls=3, begin=begin("charge"))
    assert (second.end, second.result, second.grant) == (None, {"n": 1}, None)
    assert store.contents(task_id) == before


@pytest.mark.demand("B8")
async def test_step_that_is_done_is_not_begun_again(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.advance(hold, done="stock", result={"n": 1}, calls=1)
    before = store.contents(task_id)
    report = await store.store.advance(hold, begin=begin("stock"))
    assert (report.end, report.result, report.grant) == (None, {"n": 1}, None)
    assert store.contents(task_id) == before


@pytest.mark.demand("B11")
async def test_last_boundary_that_is_written_twice_says_processed_twice(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="confirm")
    for _ in range(2):
        assert (await store.store.advance(hold, done="confirm", result={}, calls=1)).end is End.PROCESSED
    assert store.kinds(task_id).count("processed") == 1
    assert store.row(task_id)["locked_by"] is None


@pytest.mark.demand("C5", "F11")
async def test_faults_that_are_recorded_twice_say_the_same_twice(store: StoreBench, task_id: str) -> None:
    hold = await in_error(store, task_id)
    again = await store.store.fail(hold, "stock", REFUSED, unknown=False, then="error")
    assert (again.end, again.cause) == (End.PERMANENT_FAULT, "there is none")
    assert store.kinds(task_id).count("failed") == 1
    hold = await undo_failed(store, f"{task_id}-2")
    again = await store.store.undo_fail(hold, "charge", {"message": "never"})
    assert again.end is End.UNDO_FAILED
    assert store.kinds(f"{task_id}-2").count("undo_failed") == 1


@pytest.mark.demand("F11")
async def test_undo_that_is_finished_is_not_repeated(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    await store.store.undo_advance(hold, begin=undo("charge"))
    first = await store.store.undo_advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert first.grant is not None
    before = store.contents(task_id)
    assert (await store.store.undo_advance(hold, done="charge", calls=1, begin=undo("stock"))).grant is None
    assert (await store.store.undo_advance(hold, begin=undo("charge"))).grant is None
    assert store.contents(task_id) == before


# --- reservations ---------------------------------------------------------------------------------------------


@pytest.mark.demand("E1", "E3")
async def test_beginning_reserves_the_allowance_out_of_the_budget(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    report = await store.store.advance(hold, begin=begin("stock", calls=4, within_s=30.0))
    assert report.grant is not None
    assert report.grant.calls == 4
    assert 29 < report.grant.within_s <= 30
    step = store.step(task_id, "stock")
    assert (step["state"], step["budget"], step["budget_left"], step["reserved"]) == ("Running", 9, 5, 4)


@pytest.mark.demand("E1", "E3")
@pytest.mark.parametrize(("used", "left"), [(0, 9), (1, 8), (3, 6), (7, 6), (None, 6)])
async def test_completion_returns_what_was_certainly_not_used(
    store: StoreBench, task_id: str, used: int | None, left: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.advance(hold, done="stock", result={}, calls=used)
    assert store.step(task_id, "stock")["budget_left"] == left


@pytest.mark.demand("E1", "E3")
async def test_beginning_again_in_one_attempt_reserves_anew_and_keeps_the_deadline(
    store: StoreBench, task_id: str
) -> None:
    hold = await store.begun(task_id)
    before = store.step(task_id, "stock")
    report = await store.store.advance(hold, begin=begin("stock", within_s=3600.0))
    after = store.step(task_id, "stock")
    assert report.grant is not None
    assert report.grant.within_s <= 60
    assert after["complete_by"] == before["complete_by"] == store.row(task_id)["complete_by"]
    assert (after["budget_left"], after["reserved"]) == (3, 3)
    assert after["reservation"] != before["reservation"]
    assert after["outcome_unknown"]


@pytest.mark.demand("B8", "C3", "E1")
async def test_new_attempt_gets_a_new_deadline_and_what_is_left_of_the_budget(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    await recovered(store, task_id)
    before = store.step(task_id, "stock")
    hold = await store.claim(task_id)
    report = await store.store.advance(hold, begin=begin("stock"))
    after = store.step(task_id, "stock")
    assert report.grant is not None
    assert report.grant.within_s > 59
    assert after["complete_by"] > before["complete_by"]
    assert (after["epoch"], after["budget_left"], after["outcome_unknown"]) == (2, 3, True)


@pytest.mark.demand("F7")
async def test_deadline_of_a_step_never_moves_back(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    await store.store.advance(hold, begin=begin("stock", within_s=3600.0))
    before = store.step(task_id, "stock")["complete_by"]
    await store.store.release(hold, "draining", step="stock", called=True, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.advance(hold, begin=begin("stock", within_s=1.0))
    assert store.step(task_id, "stock")["complete_by"] == before


@pytest.mark.demand("E1", "E3")
async def test_reservations_of_all_attempts_never_exceed_the_budget_and_end_with_gave_up(
    store: StoreBench, task_id: str
) -> None:
    await store.submitted(task_id)
    granted = []
    while True:
        hold = await store.claim(task_id)
        report = await store.store.advance(hold, begin=begin("stock", calls=4))
        if report.grant is None:
            break
        granted.append(report.grant.calls)
        await store.store.release(hold, "called, and then drained", step="stock", called=True, delay=AT_ONCE)
    assert granted == [4, 4, 1]
    assert report.end is End.GAVE_UP
    assert "budget" in report.cause
    assert store.step(task_id, "stock")["budget_left"] == 0
    decision = decide(await expired(store, task_id))
    assert decision.target is TaskState.COMPENSATING
    store.is_consistent(task_id)


@pytest.mark.demand("E1", "E3", "C9")
async def test_next_step_without_budget_leaves_the_boundary_written_and_gives_up_by_itself(
    store: StoreBench, task_id: str
) -> None:
    hold = await store.begun(task_id)
    store.owner("UPDATE step SET budget_left = 0 WHERE name = 'charge'")
    report = await store.store.advance(hold, done="stock", result={}, calls=1, begin=begin("charge"))
    assert (report.end, report.grant) == (None, None)
    report = await store.store.advance(hold, begin=begin("charge"))
    assert report.end is End.GAVE_UP
    assert store.step(task_id, "stock")["state"] == "Completed"
    assert store.step(task_id, "charge")["state"] == "NotStarted"
    assert store.kinds(task_id)[-2:] == ["advanced", "gave_up"]


@pytest.mark.demand("E3", "C8")
@pytest.mark.parametrize(("called", "left"), [(False, 9), (True, 6)])
async def test_release_returns_the_reservation_only_if_certainly_no_call_was_made(
    store: StoreBench, task_id: str, called: bool, left: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", called=called, delay=timedelta(seconds=30))
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    assert row["not_before"] > row["updated_at"] + timedelta(seconds=29)
    step = store.step(task_id, "stock")
    assert (step["budget_left"], step["failure_count"]) == (left, 0)


@pytest.mark.demand("E4")
async def test_undo_reserves_out_of_its_own_budget(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    report = await store.store.undo_advance(hold, begin=undo("charge", calls=7))
    assert report.grant is not None
    assert report.grant.calls == 7
    step = store.step(task_id, "charge")
    assert (step["budget_left"], step["undo_budget_left"], step["state"]) == (6, 23, "Undoing")
    await store.store.undo_advance(hold, done="charge", calls=2, begin=undo("stock"))
    assert store.step(task_id, "charge")["undo_budget_left"] == 28
    await store.store.release(hold, "draining", step="stock", called=False, delay=AT_ONCE)
    assert store.step(task_id, "stock")["undo_budget_left"] == 30
    assert store.row(task_id)["state"] == "Compensating"


@pytest.mark.demand("C9")
async def test_giving_up_brings_only_the_tasks_own_deadline_forward(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    before = store.step(task_id, "stock")
    report = await store.store.give_up(hold, "stock", "no more calls")
    assert report.end is End.GAVE_UP
    assert store.step(task_id, "stock") == {**before, "gave_up": True}
    (found,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    assert found.locked_by == hold.locked_by
    assert decide(found).failed_steps == ["stock"]


@pytest.mark.demand("B4", "C9")
async def test_deadline_of_a_task_is_the_earliest_of_its_running_steps(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id, "provisioning")
    await store.store.advance(hold, begin=begin("address", "provisioning", within_s=10.0))
    await store.store.advance(hold, begin=begin("disk", "provisioning", within_s=50.0))
    assert store.row(task_id)["complete_by"] == store.step(task_id, "address")["complete_by"]
    await store.store.advance(hold, done="address", result={}, calls=1)
    assert store.row(task_id)["complete_by"] == store.step(task_id, "disk")["complete_by"]


# --- the compensation log -------------------------------------------------------------------------------------


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
        await store.store.advance(hold, begin=begin(name, "provisioning"))
    first = store.log(task_id)
    assert [name for _, name, _ in first] == ["disk", "address"]
    await recovered(store, task_id)
    hold = await store.claim(task_id)
    for name in ("address", "disk"):
        assert (await store.store.advance(hold, begin=begin(name, "provisioning"))).grant is not None
    assert store.log(task_id) == first


@pytest.mark.demand("F3", "F4")
async def test_undo_runs_from_the_step_that_began_last_to_the_first(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id, "ship")
    names = [e.step for e in (await store.task(task_id)).undo_log]
    assert names == ["ship", "charge", "stock"]
    for name in names:
        assert (await store.store.undo_advance(hold, begin=undo(name))).grant is not None
        report = await store.store.undo_advance(hold, done=name, calls=1)
    assert report.end is End.COMPENSATED
    assert store.log(task_id) == [(1, "stock", "Undone"), (2, "charge", "Undone"), (3, "ship", "Undone")]
    assert [s.state for s in (await store.task(task_id)).steps] == [StepState.UNDONE] * 3 + [StepState.NOT_STARTED]
    store.is_consistent(task_id)


@pytest.mark.demand("F3")
@pytest.mark.parametrize("wrong", ["stock", "charge"])
async def test_undo_of_a_step_before_its_turn_is_not_begun(store: StoreBench, task_id: str, wrong: str) -> None:
    hold = await undoing(store, task_id, "ship")
    before = store.contents(task_id)
    assert (await store.store.undo_advance(hold, begin=undo(wrong))).grant is None
    assert store.contents(task_id) == before


@pytest.mark.demand("F1")
async def test_task_that_has_begun_nothing_is_compensated_at_once(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    await store.store.request_undo(asked(task_id))
    hold = await store.claim(task_id)
    for _ in range(2):
        assert (await store.store.undo_advance(hold)).end is End.COMPENSATED
    assert store.kinds(task_id) == ["submitted", "undo_requested", "claimed", "compensated"]


@pytest.mark.demand("F9")
async def test_failed_undo_says_what_is_undone_what_failed_and_what_was_not_tried(
    store: StoreBench, task_id: str
) -> None:
    hold = await undoing(store, task_id, "ship")
    await store.store.undo_advance(hold, begin=undo("ship"))
    await store.store.undo_advance(hold, done="ship", calls=1, begin=undo("charge"))
    await store.store.undo_fail(hold, "charge", {"step": "charge", "message": "never"})
    assert store.log(task_id) == [(1, "stock", "Logged"), (2, "charge", "Failed"), (3, "ship", "Undone")]
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["error"]["message"]) == ("CompensationFailed", None, "never")
    (alert,) = store.owner("SELECT kind, message FROM alert WHERE task_id = %(id)s", id=task_id)
    assert alert == {"kind": "compensation_failed", "message": "undo of charge: never"}


# --- undo on request ------------------------------------------------------------------------------------------


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
        await store.store.request_undo(asked(task_id))

    async def compensated() -> None:
        await store.submitted(task_id)
        await store.store.request_undo(asked(task_id))
        await store.store.undo_advance(await store.claim(task_id))

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
    found = await store.store.request_undo(asked(task_id))
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
    assert (await store.store.request_undo(asked("nobody"))).verdict == "not_found"


@pytest.mark.demand("F1", "F12")
@pytest.mark.parametrize("how", ["running", "completed", "failed with an unknown outcome"])
async def test_undo_past_the_pivot_is_refused_naming_it(store: StoreBench, task_id: str, how: str) -> None:
    if how == "completed":
        await store.processed(task_id, "provisioning")
    else:
        hold = await store.begun(task_id, "provisioning", "name")
        if how != "running":
            report = await store.store.fail(hold, "name", REFUSED, unknown=True, then="undo")
            assert report.end is End.PERMANENT_FAULT
            assert store.row(task_id)["state"] == "Error"
    before = store.contents(task_id)
    found = await store.store.request_undo(asked(task_id))
    assert found.verdict == "past_pivot"
    assert "step name" in found.message
    assert store.contents(task_id) == before


@pytest.mark.demand("F12", "C5")
async def test_pivot_that_was_refused_with_certainty_leaves_the_way_back_open(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, "provisioning", "name")
    await store.store.fail(hold, "name", REFUSED, unknown=False, then="undo")
    row = store.row(task_id)
    assert (row["state"], row["locked_by"]) == ("Compensating", None)
    assert store.owner("SELECT * FROM alert") == []


@pytest.mark.demand("B2", "F1", "G6")
async def test_cancel_of_a_stale_run_undoes_nothing(store: StoreBench, task_id: str) -> None:
    stale = await store.begun(task_id)
    await recovered(store, task_id)
    successor = await store.claim(task_id)
    before = store.contents(task_id)
    found = await store.store.request_undo(asked(task_id, stale.locked_by))
    assert (found.verdict, found.state) == ("not_holder", TaskState.PROCESSING)
    assert store.contents(task_id) == before
    assert (await store.store.request_undo(asked(task_id, successor.locked_by))).verdict == "accepted"


@pytest.mark.demand("E4", "F1", "F9")
async def test_undo_that_failed_and_is_asked_for_again_gets_a_fresh_undo_budget_and_can_finish(
    store: StoreBench, task_id: str
) -> None:
    await undo_failed(store, task_id)
    assert store.step(task_id, "charge")["undo_budget_left"] == 25
    await store.store.request_undo(asked(task_id))
    step = store.step(task_id, "charge")
    assert (step["undo_budget_left"], step["undo_budget"]) == (30, 35)
    hold = await store.claim(task_id)
    assert (await store.store.undo_advance(hold, begin=undo("charge"))).grant is not None
    await store.store.undo_advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert (await store.store.undo_advance(hold, done="stock", calls=1)).end is End.COMPENSATED


# --- resubmission ---------------------------------------------------------------------------------------------


async def resubmit(store: StoreBench, task_id: str) -> bool:
    """A person resubmits."""
    moved, _ = await store.store.resubmit(task_id, requester="anna", reason="corrected", changes={"a": [1, 2]})
    return moved


@pytest.mark.demand("G1", "G4", "C2")
async def test_resubmission_starts_again_with_fresh_budget_and_says_who_and_why(
    store: StoreBench, task_id: str
) -> None:
    await in_error(store, task_id)
    assert await resubmit(store, task_id)
    row, step = store.row(task_id), store.step(task_id, "stock")
    assert (row["state"], row["failure_count"], row["error"]) == ("Pending", 0, None)
    assert (step["budget_left"], step["budget"], step["failure_count"]) == (9, 12, 0)
    (event,) = store.owner("SELECT * FROM event WHERE kind = 'resubmitted'")
    assert (event["actor"], event["detail"]["reason"], event["detail"]["changes"]) == (
        "anna",
        "corrected",
        {"a": [1, 2]},
    )
    hold = await store.claim(task_id)
    assert (await store.store.advance(hold, begin=begin("stock"))).grant is not None


@pytest.mark.demand("C2", "C5")
async def test_key_generation_rises_only_where_it_is_proved_that_no_effect_exists(
    store: StoreBench, task_id: str
) -> None:
    await in_error(store, task_id, unknown=False)
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1
    assert store.step(task_id, "charge")["key_generation"] == 0
    await in_error(store, f"{task_id}-2", unknown=True)
    await resubmit(store, f"{task_id}-2")
    assert store.step(f"{task_id}-2", "stock")["key_generation"] == 0


@pytest.mark.demand("C2", "C5")
@pytest.mark.parametrize(("called", "generation"), [(True, 0), (False, 1)])
async def test_call_of_an_earlier_attempt_keeps_the_key_and_a_certain_absence_of_calls_does_not(
    store: StoreBench, task_id: str, called: bool, generation: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", called=called, delay=AT_ONCE)
    hold = await store.claim(task_id)
    grant = (await store.store.advance(hold, begin=begin("stock"))).grant
    assert grant is not None
    assert grant.unknown is called, "the Agent is told, and says so with what it reports"
    await store.store.fail(hold, "stock", REFUSED, unknown=grant.unknown, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == generation


@pytest.mark.demand("C2", "C15")
async def test_key_rises_after_a_call_of_an_earlier_attempt_that_was_asked_about(
    store: StoreBench, task_id: str
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", called=True, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.advance(hold, begin=begin("stock"))
    await store.store.fail(hold, "stock", REFUSED, unknown=False, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1


@pytest.mark.demand("G1", "B8")
async def test_resubmission_repeats_only_the_step_that_failed(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.store.fail(hold, "charge", REFUSED, unknown=False, then="error")
    before = store.step(task_id, "stock")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock") == before
    assert before["state"] == "Completed"


@pytest.mark.demand("G1")
async def test_only_a_task_in_error_is_resubmitted(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    for make in (lambda: store.claim(task_id), lambda: store.store.request_undo(asked(task_id)), lambda: None):
        before = store.contents(task_id)
        moved, after = await store.store.resubmit(task_id, requester="anna", reason="why", changes={})
        assert (moved, after and after.state) == (False, store.row(task_id)["state"])
        assert store.contents(task_id) == before
        made = make()
        if made is not None:
            await made
    assert await store.store.resubmit("nobody", requester="anna", reason="why", changes={}) == (False, None)


# --- the Supervisor's guard -----------------------------------------------------------------------------------


@pytest.mark.demand("D5", "D6")
async def test_recovery_frees_the_row_counts_the_failure_and_says_why(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    decision = decide(await expired(store, task_id))
    assert await store.supervision.recover([decision], "supervisor") == [(task_id, hold.locked_by)]
    row, step = store.row(task_id), store.step(task_id, "stock")
    assert (row["state"], row["locked_by"], row["complete_by"], row["failure_count"]) == ("Pending", None, None, 1)
    assert (step["state"], step["failure_count"]) == ("Running", 1)
    assert row["error"] == {"message": decision.cause, "steps": ["stock"]}
    (event,) = store.owner("SELECT * FROM event WHERE kind = 'expired'")
    assert event["detail"]["held_by"] == hold.locked_by
    store.is_consistent(task_id)


@pytest.mark.demand("D5", "D9")
@pytest.mark.parametrize("stale", ["another holder", "another deadline", "a deadline that has not passed"])
async def test_holder_that_moved_on_is_never_evicted(store: StoreBench, task_id: str, stale: str) -> None:
    await store.begun(task_id)
    decision = decide(await expired(store, task_id))
    if stale == "another holder":
        decision = decision.model_copy(update={"locked_by": f"order/{task_id}/7"})
    elif stale == "another deadline":
        decision = decision.model_copy(update={"complete_by": decision.complete_by - timedelta(microseconds=1)})
    else:
        later = decision.complete_by + timedelta(hours=1)
        store.owner("UPDATE task SET complete_by = %(at)s", at=later)
        decision = decision.model_copy(update={"complete_by": later})
    before = store.contents(task_id)
    assert await store.supervision.recover([decision], "supervisor") == []
    assert store.contents(task_id) == before


@pytest.mark.demand("D5", "D9", "F12")
async def test_decision_from_before_a_pivot_began_within_the_same_deadline_undoes_nothing(
    store: StoreBench, task_id: str
) -> None:
    """The boundary was checked before the deadline, committed behind it; another step's deadline stays the task's."""
    hold = await store.begun(task_id, "provisioning", "address")
    store.owner("UPDATE step SET pivot = true WHERE name = 'disk'")
    decision = decide(await expired(store, task_id)).model_copy(update={"target": TaskState.COMPENSATING})
    store.owner("UPDATE task SET complete_by = clock_timestamp() + interval '1 minute'")
    await store.store.advance(hold, begin=begin("disk", "provisioning"))
    store.owner("UPDATE task SET complete_by = %(at)s", at=decision.complete_by)
    assert store.step(task_id, "disk")["state"] == "Running"
    before = store.contents(task_id)
    assert await store.supervision.recover([decision], "supervisor") == []
    assert store.contents(task_id) == before
    await recovered(store, task_id)  # by a decision of the next sweep


@pytest.mark.demand("D9")
async def test_same_decision_is_carried_out_once(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    decision = decide(await expired(store, task_id))
    assert len(await store.supervision.recover([decision], "supervisor")) == 1
    before = store.contents(task_id)
    assert await store.supervision.recover([decision], "supervisor") == []
    assert store.contents(task_id) == before


@pytest.mark.demand("D7", "F9")
@pytest.mark.parametrize(
    ("state", "target", "kind"),
    [("Processing", TaskState.ERROR, "task_in_error"), ("Compensating", "CompensationFailed", "compensation_failed")],
)
async def test_recovery_that_needs_a_person_raises_an_alert(
    store: StoreBench, task_id: str, state: str, target: str, kind: str
) -> None:
    await (store.begun(task_id) if state == "Processing" else at_work(store, task_id, "undo_advance"))
    decision = decide(await expired(store, task_id)).model_copy(update={"target": TaskState(target)})
    await store.supervision.recover([decision], "supervisor")
    assert store.row(task_id)["state"] == target
    assert store.owner("SELECT kind, task_id FROM alert") == [{"kind": kind, "task_id": task_id}]


@pytest.mark.demand("D2", "D4")
async def test_sweep_reads_page_by_page_oldest_first_from_the_oldest_on(store: StoreBench) -> None:
    ids = [f"t-{n}" for n in range(5)]
    await asyncio.gather(*(store.submitted(i) for i in ids))
    await store.store.claim("worker", LOADED, 10)
    for n, task_id in enumerate(ids):
        ago = "UPDATE task SET complete_by = now() - make_interval(days => %(days)s) WHERE task_id = %(id)s"
        store.owner(ago, id=task_id, days=100 - n)
    window = timedelta(days=2, hours=12)
    first = await store.supervision.expired(window=window, page=2, after=(None, ""))
    last = first[-1]
    second = await store.supervision.expired(window=window, page=5, after=(last.complete_by, last.task_id))
    assert [t.task_id for t in first] == ids[:2]
    assert [t.task_id for t in second] == ids[2:3]


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
async def test_task_is_past_its_pivot_once_the_pivot_may_have_had_its_effect(
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
