"""What a person is told of a task that waits or has failed: what happens next, when, and what may be done."""

from __future__ import annotations

from datetime import timedelta

import pytest
from psycopg.types.json import Jsonb

from domain.faults import KEY_FORGOTTEN
from domain.states import UndoState
from operators.explain import what_happens_next
from operators.repair import Repair, carry_out
from store.reads import Reads
from tests.integration.situations import asked, refund_refused
from tests.integration.store_bench import StoreBench, undo


async def next_of(reads: Reads, task_id: str) -> str:
    """The sentence that `show` has on what happens next."""
    return what_happens_next(await reads.page(task_id), has_live_worker=True, sweep_interval=timedelta(seconds=10))


@pytest.mark.demand("F9", "F10", "G5")
async def test_outlook_of_a_failed_undo_names_every_way_on(store: StoreBench, reads: Reads, task_id: str) -> None:
    await refund_refused(store, task_id)
    then = await next_of(reads, task_id)
    assert "undoes what is left (charge, stock)" in then
    assert f"starter.py compensate {task_id}" in then
    assert f"starter.py repair {task_id} charge --done-by-hand" in then
    for step in ("charge", "stock"):
        await carry_out(
            store.store, reads, Repair(task_id, step, UndoState.SKIPPED, "cli:anna", "it is paid back", None)
        )
    then = await next_of(reads, task_id)
    assert "step charge, stock was skipped" in then
    assert f"starter.py repair {task_id} charge --done-by-hand" in then
    store.owner("UPDATE compensation SET state = 'Undone' WHERE task_id = %(id)s", id=task_id)
    assert "nothing is left to undo" in await next_of(reads, task_id)


@pytest.mark.demand("F9", "G5")
async def test_outlook_of_a_too_old_undo_advises_no_repetition(store: StoreBench, reads: Reads, task_id: str) -> None:
    await refund_refused(store, task_id)
    store.owner("UPDATE compensation SET error = %(error)s WHERE step = 'charge'", error=Jsonb({"code": KEY_FORGOTTEN}))
    then = await next_of(reads, task_id)
    assert then.startswith("waits for a person: step charge is too old to be undone by its key; undo it at its service")
    assert f"starter.py repair {task_id} charge --done-by-hand" in then
    assert "compensate" not in then


@pytest.mark.demand("C8", "G5")
async def test_outlook_names_the_service_a_task_waits_for_and_how_long(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await store.processed(task_id)
    await store.store.requests.undo(asked(task_id))
    assert "its undo is claimable now" in await next_of(reads, task_id)
    store.owner(
        "INSERT INTO service (name, state, failures, cause, retry_at)"
        " VALUES ('shipping', 'open', 5, '503 again', clock_timestamp() + interval '1 minute')"
    )
    then = await next_of(reads, task_id)
    assert then.startswith("waits for service shipping: its breaker is open (503 again), next probe at 20")
    store.owner("UPDATE service SET probe_task = %(id)s, probe_until = clock_timestamp() + interval '1 minute'", id="x")
    assert "next probe by 20" in await next_of(reads, task_id)
    store.owner("UPDATE service SET probe_task = %(id)s", id=task_id)
    assert "its undo is claimable now" in await next_of(reads, task_id), "it is the probe itself"
    await store.breakers.force("shipping", "open", requester="cli:anna", reason="they move house")
    assert "cli:anna has opened its breaker (they move house)" in await next_of(reads, task_id)


@pytest.mark.demand("B10", "G5")
async def test_outlook_of_a_task_that_was_given_back_says_why(store: StoreBench, reads: Reads, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.steps.release(hold, "its business record is not there", sent=0, delay=timedelta(minutes=4))
    then = await next_of(reads, task_id)
    assert then.startswith("claimable at 20")
    assert then.endswith("by the next worker with a free slot: its business record is not there")


@pytest.mark.demand("C15", "G1", "G5")
async def test_outlook_of_an_unknown_call_names_what_a_person_can_say(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    hold = await store.begun(task_id, "provisioning", "name")
    await store.store.forward.fail(hold, "name", {"step": "name", "message": "?"}, unknown=True, then="error")
    again = f"python starter.py resubmit {task_id}"
    word = f"`{again} --no-effect name --evidence TEXT --reason TEXT`"
    then = await next_of(reads, task_id)
    assert then.startswith(f"waits for a person: `{again}`; a call of step name may have had its effect")
    assert then.endswith(word)
    store.owner("UPDATE step SET error = %(error)s WHERE name = 'name'", error=Jsonb({"code": KEY_FORGOTTEN}))
    then = await next_of(reads, task_id)
    assert then.startswith("waits for a person: its service no longer knows of a call of step name; look there")
    assert then.endswith(word)
    assert "compensate" not in then, "it is past its pivot"


@pytest.mark.demand("F6", "F7", "G5")
async def test_outlook_of_an_undo_that_waits_on_purpose_says_what_for(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await store.begun(task_id)
    store.owner("UPDATE step SET quarantine_s = 600 WHERE task_id = %(id)s AND name = 'stock'", id=task_id)
    await store.store.requests.undo(asked(task_id))
    assert "until then a call of step stock may still be on its way" in await next_of(reads, task_id)
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold, begin=undo("stock"))).grant is not None
    await store.store.undo.advance(hold, done="stock", calls=1)
    assert "step stock is in quarantine, and is undone once more then" in await next_of(reads, task_id)
