"""Recovery by the Supervisor: who is evicted by a decision, who is not any more, and what is on record."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from domain.states import TaskState
from supervisor.decide import decide
from tests.integration.situations import expired, recovered, undo_begun
from tests.integration.store_bench import LOADED, StoreBench, begin


@pytest.mark.demand("D5", "D6")
async def test_recovery_frees_the_row_counts_the_failure_and_says_why(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    decision = decide(await expired(store, task_id))
    assert await store.supervision.recover([decision]) == [(task_id, hold.locked_by)]
    row, step = store.row(task_id), store.step(task_id, "stock")
    assert (row["state"], row["locked_by"], row["complete_by"], row["failure_count"]) == ("Pending", None, None, 1)
    assert (step["state"], step["failure_count"]) == ("Running", 1)
    assert row["error"] == {"message": decision.cause, "steps": ["stock"]}
    (event,) = store.owner("SELECT * FROM event WHERE kind = 'expired'")
    assert event["detail"]["held_by"] == hold.locked_by
    store.is_consistent(task_id)


@pytest.mark.failure(64)
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
    assert await store.supervision.recover([decision]) == []
    assert store.contents(task_id) == before


@pytest.mark.failure(64)
@pytest.mark.demand("D5", "D9", "F12")
async def test_decision_taken_before_a_pivot_began_undoes_nothing(store: StoreBench, task_id: str) -> None:
    """The boundary was checked before the deadline, committed behind it; another step's deadline stays the task's."""
    hold = await store.begun(task_id, "provisioning", "address")
    store.owner("UPDATE step SET pivot = true WHERE name = 'disk'")
    decision = decide(await expired(store, task_id)).model_copy(update={"target": TaskState.COMPENSATING})
    store.owner("UPDATE task SET complete_by = clock_timestamp() + interval '1 minute'")
    await store.store.forward.advance(hold, begin=begin("disk", "provisioning"))
    store.owner("UPDATE task SET complete_by = %(at)s", at=decision.complete_by)
    assert store.step(task_id, "disk")["state"] == "Running"
    before = store.contents(task_id)
    assert await store.supervision.recover([decision]) == []
    assert store.contents(task_id) == before
    await recovered(store, task_id)  # by a decision of the next sweep


@pytest.mark.failure(62)
@pytest.mark.demand("D9")
async def test_same_decision_is_carried_out_once(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    decision = decide(await expired(store, task_id))
    assert len(await store.supervision.recover([decision])) == 1
    before = store.contents(task_id)
    assert await store.supervision.recover([decision]) == []
    assert store.contents(task_id) == before


@pytest.mark.demand("D7", "F9")
@pytest.mark.parametrize(
    ("state", "target", "kind"),
    [("Processing", TaskState.ERROR, "task_in_error"), ("Compensating", "CompensationFailed", "compensation_failed")],
)
async def test_recovery_that_needs_a_person_raises_an_alert(
    store: StoreBench, task_id: str, state: str, target: str, kind: str
) -> None:
    await (store.begun(task_id) if state == "Processing" else undo_begun(store, task_id))
    decision = decide(await expired(store, task_id)).model_copy(update={"target": TaskState(target)})
    await store.supervision.recover([decision])
    assert store.row(task_id)["state"] == target
    assert store.owner("SELECT kind, task_id FROM alert") == [{"kind": kind, "task_id": task_id}]


@pytest.mark.failure(67)
@pytest.mark.demand("D2", "D4")
async def test_sweep_reads_page_by_page_oldest_first_from_the_oldest_on(store: StoreBench) -> None:
    ids = [f"t-{n}" for n in range(5)]
    await asyncio.gather(*(store.submitted(i) for i in ids))
    await store.store.claims.claim("worker", LOADED, 10)
    for n, task_id in enumerate(ids):
        ago = "UPDATE task SET complete_by = now() - make_interval(days => %(days)s) WHERE task_id = %(id)s"
        store.owner(ago, id=task_id, days=100 - n)
    window = timedelta(days=2, hours=12)
    first = await store.supervision.expired(window=window, page=2, after=(None, ""))
    last = first[-1]
    second = await store.supervision.expired(window=window, page=5, after=(last.complete_by, last.task_id))
    assert [t.task_id for t in first] == ids[:2]
    assert [t.task_id for t in second] == ids[2:3]
