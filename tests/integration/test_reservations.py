"""Reservations: how many calls an attempt may make, out of which budget, and until when."""

from __future__ import annotations

from datetime import timedelta

import pytest

from domain.attempts import AttemptEnd
from domain.states import TaskState
from supervisor.decide import decide
from tests.integration.situations import AT_ONCE, WINDOW, expired, recovered, undoing
from tests.integration.store_bench import StoreBench, begin, undo


@pytest.mark.demand("E1", "E3")
async def test_beginning_reserves_the_allowance_out_of_the_budget(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    report = await store.store.forward.advance(hold, begin=begin("stock", calls=4, within_s=30.0))
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
    await store.store.forward.advance(hold, done="stock", result={}, calls=used)
    assert store.step(task_id, "stock")["budget_left"] == left


@pytest.mark.demand("E1", "E3")
async def test_second_call_in_one_attempt_reserves_anew_and_keeps_the_deadline(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    before = store.step(task_id, "stock")
    report = await store.store.forward.advance(hold, begin=begin("stock", within_s=3600.0))
    after = store.step(task_id, "stock")
    assert report.grant is not None
    assert report.grant.within_s <= 60
    assert after["complete_by"] == before["complete_by"] == store.row(task_id)["complete_by"]
    assert (after["budget_left"], after["reserved"]) == (3, 3)
    assert after["reservation"] != before["reservation"]
    assert after["outcome_unknown"]


@pytest.mark.demand("B8", "C3", "E1")
async def test_new_attempt_gets_a_deadline_and_the_budgets_rest(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    await recovered(store, task_id)
    before = store.step(task_id, "stock")
    hold = await store.claim(task_id)
    report = await store.store.forward.advance(hold, begin=begin("stock"))
    after = store.step(task_id, "stock")
    assert report.grant is not None
    assert report.grant.within_s > 59
    assert after["complete_by"] > before["complete_by"]
    assert (after["epoch"], after["budget_left"], after["outcome_unknown"]) == (2, 3, True)


@pytest.mark.demand("F7")
async def test_deadline_of_a_step_never_moves_back(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    await store.store.forward.advance(hold, begin=begin("stock", within_s=3600.0))
    before = store.step(task_id, "stock")["complete_by"]
    await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.forward.advance(hold, begin=begin("stock", within_s=1.0))
    assert store.step(task_id, "stock")["complete_by"] == before


@pytest.mark.failure(70)
@pytest.mark.demand("E1", "E3")
async def test_reservations_of_all_attempts_never_exceed_the_budget(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    granted = []
    while True:
        hold = await store.claim(task_id)
        report = await store.store.forward.advance(hold, begin=begin("stock", calls=4))
        if report.grant is None:
            break
        granted.append(report.grant.calls)
        await store.store.steps.release(hold, "called, and then drained", step="stock", sent=None, delay=AT_ONCE)
    assert granted == [4, 4, 1]
    assert report.end is AttemptEnd.GAVE_UP
    assert "budget" in report.cause
    assert store.step(task_id, "stock")["budget_left"] == 0
    decision = decide(await expired(store, task_id))
    assert decision.target is TaskState.COMPENSATING
    store.is_consistent(task_id)


@pytest.mark.demand("E1", "E3", "C9")
async def test_next_step_without_budget_gives_up_behind_the_written_boundary(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    store.owner("UPDATE step SET budget_left = 0 WHERE name = 'charge'")
    report = await store.store.forward.advance(hold, done="stock", result={}, calls=1, begin=begin("charge"))
    assert (report.end, report.grant) == (None, None)
    report = await store.store.forward.advance(hold, begin=begin("charge"))
    assert report.end is AttemptEnd.GAVE_UP
    assert store.step(task_id, "stock")["state"] == "Completed"
    assert store.step(task_id, "charge")["state"] == "NotStarted"
    assert store.kinds(task_id)[-2:] == ["advanced", "gave_up"]


@pytest.mark.failure(2)
@pytest.mark.demand("E3", "C8")
@pytest.mark.parametrize(("sent", "left"), [(0, 9), (1, 8), (3, 6), (4, 6), (None, 6)])
async def test_release_returns_of_the_reservation_what_was_certainly_not_sent(
    store: StoreBench, task_id: str, sent: int | None, left: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.release(hold, "draining", step="stock", sent=sent, delay=timedelta(seconds=30))
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    assert row["not_before"] > row["updated_at"] + timedelta(seconds=29)
    step = store.step(task_id, "stock")
    assert (step["budget_left"], step["failure_count"]) == (left, 0)


@pytest.mark.demand("E4")
async def test_undo_reserves_out_of_its_own_budget(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    report = await store.store.undo.advance(hold, begin=undo("charge", calls=7))
    assert report.grant is not None
    assert report.grant.calls == 7
    step = store.step(task_id, "charge")
    assert (step["budget_left"], step["undo_budget_left"], step["state"]) == (6, 23, "Undoing")
    await store.store.undo.advance(hold, done="charge", calls=2, begin=undo("stock"))
    assert store.step(task_id, "charge")["undo_budget_left"] == 28
    await store.store.steps.release(hold, "draining", step="stock", sent=0, delay=AT_ONCE)
    assert store.step(task_id, "stock")["undo_budget_left"] == 30
    assert store.row(task_id)["state"] == "Compensating"


@pytest.mark.demand("C9")
async def test_giving_up_brings_only_the_tasks_own_deadline_forward(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    before = store.step(task_id, "stock")
    report = await store.store.steps.give_up(hold, "stock", "no more calls")
    assert report.end is AttemptEnd.GAVE_UP
    assert store.step(task_id, "stock") == {**before, "gave_up": True}
    (found,) = await store.supervision.expired(window=WINDOW, page=10, after=(None, ""))
    assert found.locked_by == hold.locked_by
    assert decide(found).failed_steps == ["stock"]


@pytest.mark.demand("B4", "C9")
async def test_deadline_of_a_task_is_the_earliest_of_its_running_steps(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id, "provisioning")
    await store.store.forward.advance(hold, begin=begin("address", "provisioning", within_s=10.0))
    await store.store.forward.advance(hold, begin=begin("disk", "provisioning", within_s=50.0))
    assert store.row(task_id)["complete_by"] == store.step(task_id, "address")["complete_by"]
    await store.store.forward.advance(hold, done="address", result={}, calls=1)
    assert store.row(task_id)["complete_by"] == store.step(task_id, "disk")["complete_by"]


@pytest.mark.failure(72)
@pytest.mark.demand("E2")
@pytest.mark.parametrize(
    ("unknown", "sent", "left", "reserved"),
    [(False, 0, 9, 0), (False, 1, 8, 0), (True, 1, 8, 1), (True, 3, 6, 3), (True, None, 6, 3), (False, None, 6, 0)],
)
async def test_giving_up_returns_what_was_certainly_not_sent(
    store: StoreBench, task_id: str, unknown: bool, sent: int | None, left: int, reserved: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.give_up(hold, "stock", "503", unknown=unknown, sent=sent)
    await store.store.steps.give_up(hold, "stock", "503", unknown=unknown, sent=sent)
    step = (await store.task(task_id)).step("stock")
    assert (step.calls_left, step.reserved) == (left, reserved)


@pytest.mark.failure(31)
@pytest.mark.demand("C15")
@pytest.mark.parametrize("how", ["released", "given up"])
async def test_key_that_was_certainly_never_sent_does_not_age(store: StoreBench, task_id: str, how: str) -> None:
    hold = await store.begun(task_id)
    store.owner("UPDATE step SET key_since = key_since - interval '2 days' WHERE name = 'stock'")
    if how == "released":
        await store.store.steps.release(hold, "no worker", step="stock", sent=0, delay=timedelta(0))
    else:
        await store.store.steps.give_up(hold, "stock", "503", unknown=False, sent=1)
        await recovered(store, task_id)
    again = await store.claim(task_id)
    report = await store.store.forward.advance(again, begin=begin("stock"))
    assert report.grant is not None
    assert (report.grant.unknown, report.grant.key_age_s < 60) == (False, True)


@pytest.mark.failure(72)
@pytest.mark.demand("C5", "D6")
async def test_pause_that_a_service_wishes_for_is_kept_by_the_supervisor(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.give_up(hold, "stock", "503", unknown=False, sent=1, pause_s=3600)
    await recovered(store, task_id)
    (row,) = store.owner(
        "SELECT extract(epoch FROM not_before - clock_timestamp())::int AS pause_s FROM task WHERE task_id = %(id)s",
        id=task_id,
    )
    assert 3500 < row["pause_s"] <= 3600
