"""Claims in the state store: who gets a task, for how long, and how many at once."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from domain.states import TaskState
from store.database import Database
from store.state_store import StateStore
from tests.integration.situations import AT_ONCE
from tests.integration.store_bench import LOADED, RUN, StoreBench, begin


@pytest.mark.demand("B1", "B3")
async def test_claim_holds_the_task_under_its_attempts_id_until_a_deadline(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id)
    task = await store.task(task_id)
    assert hold.locked_by == f"order/{task_id}/1"
    assert (task.state, task.epoch, task.locked_by, task.run_id) == (TaskState.PROCESSING, 1, hold.locked_by, None)
    assert 0 < (task.time_left_s or 0) <= 10
    assert store.kinds(task_id) == ["submitted", "confirmed", "claimed"]


@pytest.mark.demand("B1")
async def test_claim_takes_no_more_than_the_free_slots_of_a_worker(store: StoreBench) -> None:
    for n in range(4):
        await store.submitted(f"o-{n}")
        await store.submitted(f"p-{n}", "provisioning")
    assert len(await store.store.claims.claim("worker", LOADED, 3)) == 3
    assert len(await store.store.claims.claim("worker", LOADED, 3)) == 0
    assert len(await store.store.claims.claim("worker", LOADED, 5)) == 2
    assert len(await store.store.claims.claim("another", LOADED, 10)) == 3


@pytest.mark.failure(75)
@pytest.mark.demand("B1", "C11")
async def test_task_that_only_waits_for_answers_fills_no_slot(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, "provisioning", "disk")
    await store.submitted("next")
    assert await store.store.claims.claim("worker", LOADED, 1) == [], "a step is at work"
    await store.store.forward.advance(hold, done="disk", result={}, calls=1, begin=begin("machine", "provisioning"))
    assert [c.task.task_id for c in await store.store.claims.claim("worker", LOADED, 1)] == ["next"]
    await store.store.forward.advance(hold, done="machine", result={}, calls=1, begin=begin("name", "provisioning"))
    await store.submitted("last")
    assert await store.store.claims.claim("worker", LOADED, 2) == [], "it has its answer, and both are at work"


@pytest.mark.failure(75)
@pytest.mark.demand("B1", "C11")
async def test_task_that_works_beside_a_waiting_step_fills_a_slot(store: StoreBench, task_id: str) -> None:
    hold = await store.claimed(task_id, "provisioning")
    store.owner("UPDATE step SET answers_later = true WHERE name = 'address'")
    await store.submitted("next")
    await store.store.forward.advance(hold, begin=begin("address", "provisioning"))
    assert store.row(task_id)["waiting"] is True
    await store.store.forward.advance(hold, begin=begin("disk", "provisioning"))
    assert await store.store.claims.claim("worker", LOADED, 1) == [], "the disk is at work"
    await store.store.forward.advance(hold, done="disk", result={}, calls=1)
    assert [c.task.task_id for c in await store.store.claims.claim("worker", LOADED, 1)] == ["next"]


@pytest.mark.failure(75)
@pytest.mark.demand("B1", "C11")
async def test_next_attempt_at_a_task_that_waited_fills_a_slot_again(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, "provisioning", "machine")
    await store.store.steps.release(hold, "draining", step="machine", sent=None, delay=AT_ONCE)
    await store.claim(task_id)
    await store.submitted("next")
    assert await store.store.claims.claim("worker", LOADED, 1) == []


@pytest.mark.failure(60)
@pytest.mark.demand("B1", "B9")
async def test_task_whose_events_are_ahead_of_it_delays_no_other_claim(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    await store.submitted("healthy")
    store.owner(
        "INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)"
        " VALUES (%(id)s, 3, 'noted', 'Pending', 'Pending', 0, 'nobody', '{}')",
        id=task_id,
    )
    assert [c.task.task_id for c in await store.store.claims.claim("worker", LOADED, 10)] == ["healthy"]


@pytest.mark.demand("B1", "B10")
async def test_claim_passes_over_a_row_that_somebody_else_has_locked(store: StoreBench) -> None:
    for n in range(3):
        await store.submitted(f"t-{n}")
    with psycopg.connect(store.databases.owner) as other:
        other.execute("SELECT 1 FROM task WHERE task_id = 't-1' FOR UPDATE")
        claims = await store.store.claims.claim("worker", LOADED, 10)
    assert sorted(c.task.task_id for c in claims) == ["t-0", "t-2"]


async def test_claim_takes_only_what_is_loaded_and_due(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    assert await store.store.claims.claim("worker", [("order", 2), ("provisioning", 1)], 10) == []
    store.owner("UPDATE task SET not_before = clock_timestamp() + interval '1 hour'")
    assert await store.store.claims.claim("worker", LOADED, 10) == []


@pytest.mark.failure(9)
@pytest.mark.demand("B1", "B10")
async def test_of_two_claimers_exactly_one_wins_in_each_of_200_rounds(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    async with Database(store.databases.app, name="state store", size=2) as database:
        other = StateStore(database)
        for number in range(1, 201):
            won = await asyncio.gather(store.store.claims.claim("a", LOADED, 1), other.claims.claim("b", LOADED, 1))
            (claim,) = [c for claims in won for c in claims]
            assert claim.task.epoch == number
            await other.claims.not_started(claim, "next round", pause=AT_ONCE)
    store.is_consistent(task_id)


@pytest.mark.demand("B3")
async def test_claim_whose_run_began_is_not_given_back_as_unstarted(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    (claim,) = await store.store.claims.claim("worker", LOADED, 1)
    hold = claim.hold(RUN)
    assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None
    before = store.contents(task_id)
    await store.store.claims.not_started(claim, "no answer", pause=AT_ONCE)
    assert store.contents(task_id) == before
