"""Resubmission by a person: what starts again, with which budget, and under which keys."""

from __future__ import annotations

import pytest

from tests.integration.resubmitting import resubmit
from tests.integration.situations import AT_ONCE, REFUSED, asked, in_error
from tests.integration.store_bench import StoreBench, begin


@pytest.mark.demand("G1", "G4", "C2")
async def test_resubmission_has_a_fresh_budget_and_says_who_and_why(store: StoreBench, task_id: str) -> None:
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
    assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None


@pytest.mark.demand("C2", "C5")
async def test_key_generation_rises_only_where_no_effect_is_proved(store: StoreBench, task_id: str) -> None:
    await in_error(store, task_id, unknown=False)
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1
    assert store.step(task_id, "charge")["key_generation"] == 0
    await in_error(store, f"{task_id}-2", unknown=True)
    await resubmit(store, f"{task_id}-2")
    assert store.step(f"{task_id}-2", "stock")["key_generation"] == 0


@pytest.mark.demand("C2", "C5")
@pytest.mark.parametrize(("sent", "generation"), [(1, 0), (None, 0), (0, 1)])
async def test_key_stays_after_an_earlier_call_and_rises_after_none(
    store: StoreBench, task_id: str, sent: int | None, generation: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.release(hold, "draining", step="stock", sent=sent, delay=AT_ONCE)
    hold = await store.claim(task_id)
    grant = (await store.store.forward.advance(hold, begin=begin("stock"))).grant
    assert grant is not None
    assert grant.unknown is (sent != 0), "the Agent is told, and says so with what it reports"
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=grant.unknown, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == generation


@pytest.mark.demand("C2", "C15")
async def test_key_rises_after_an_earlier_call_that_was_asked_about(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.forward.advance(hold, begin=begin("stock"))
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=False, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1


@pytest.mark.demand("G1", "B8")
async def test_resubmission_repeats_only_the_step_that_failed(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.store.forward.fail(hold, "charge", REFUSED, unknown=False, then="error")
    before = store.step(task_id, "stock")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock") == before
    assert before["state"] == "Completed"


@pytest.mark.demand("G1")
async def test_only_a_task_in_error_is_resubmitted(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    for make in (lambda: store.claim(task_id), lambda: store.store.requests.undo(asked(task_id)), lambda: None):
        before = store.contents(task_id)
        moved, after = await store.store.requests.resubmit(task_id, requester="anna", reason="why", changes={})
        assert (moved, after and after.state) == (False, store.row(task_id)["state"])
        assert store.contents(task_id) == before
        made = make()
        if made is not None:
            await made
    assert await store.store.requests.resubmit("nobody", requester="anna", reason="why", changes={}) == (False, None)
