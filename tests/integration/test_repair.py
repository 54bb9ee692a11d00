"""Repair of an undo by a person, from the state store alone: who may say what of which entry, and what follows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from domain.attempts import AttemptEnd
from domain.faults import Conflict, NotFound
from domain.states import TaskState, UndoState
from operators.repair import Repair, carry_out
from operators.times import instant
from store.claims import Hold
from store.reads import Reads
from tests.integration.situations import REFUSED, asked, in_error, refund_refused, undoing
from tests.integration.store_bench import StoreBench, undo

SKIPPED, CLOSED = UndoState.SKIPPED, UndoState.CLOSED_BY_HAND
OPEN = (UndoState.LOGGED, UndoState.UNDOING, UndoState.FAILED)


def said(task_id: str, step: str, target: UndoState, by: str = "cli:anna") -> Repair:
    """What a person says of an entry."""
    evidence = "refund 77 in the bank's list" if target is CLOSED else None
    return Repair(task_id, step, target, by, "the bank has paid it back", evidence)


@contextmanager
def margin_of_an_hour(store: StoreBench) -> Iterator[None]:
    """Meanwhile a call may arrive for an hour after its deadline."""
    (margin,) = store.owner("SELECT pg_get_functiondef('late_call_margin'::regproc) AS text")
    store.owner(margin["text"].replace("2 seconds", "1 hour"))
    try:
        yield
    finally:
        store.owner(margin["text"])


async def forced_on(store: StoreBench, repair: Repair) -> bool:
    """Ask the statement itself, past every look that comes before it; whether it was accepted."""
    moved, _ = await store.store.requests.repair_undo(
        repair.task_id,
        repair.step,
        repair.target,
        requester=repair.requester,
        reason=repair.reason,
        evidence=repair.evidence,
    )
    return moved


async def undo_the_rest(store: StoreBench, task_id: str, *steps: str) -> AttemptEnd | None:
    """An attempt that undoes these steps; how it ended."""
    hold = await store.claim(task_id)
    report = await store.store.undo.advance(hold, begin=undo(steps[0]))
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        report = await store.store.undo.advance(hold, done=step, calls=1, begin=undo(after) if after else None)
    return report.end


# --- what may be repaired -------------------------------------------------------------------------------------


async def pending(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="ship")
    await store.store.steps.release(hold, "draining", sent=0, delay=timedelta(0))


async def processing(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id, step="ship")


async def processed(store: StoreBench, task_id: str) -> None:
    await store.processed(task_id)


async def error(store: StoreBench, task_id: str) -> None:
    await in_error(store, task_id)


async def held(store: StoreBench, task_id: str) -> None:
    await undoing(store, task_id, "ship")


async def asked_for(store: StoreBench, task_id: str) -> None:
    await store.processed(task_id)
    await store.store.requests.undo(asked(task_id))


async def failed(store: StoreBench, task_id: str) -> None:
    await refund_refused(store, task_id)


async def compensated(store: StoreBench, task_id: str) -> None:
    await asked_for(store, task_id)
    await undo_the_rest(store, task_id, "ship", "charge", "stock")


@pytest.mark.demand("F10", "B2")
@pytest.mark.parametrize("target", [SKIPPED, CLOSED])
@pytest.mark.parametrize(
    ("state", "allowed", "message"),
    [
        (pending, False, "is Pending, so step stock .* is not to be undone: `python starter.py compensate"),
        (processing, False, "is Processing, so step stock .* is not to be undone"),
        (processed, False, "is Processed, so step stock .* is not to be undone"),
        (error, False, "is Error, so step stock .* is not to be undone"),
        (held, False, "step stock of task .* is not tried: order/.*/2 holds the task until 20"),
        (asked_for, True, ""),
        (failed, True, ""),
        (compensated, False, "step stock of task .* is undone since 20.*Z: there is nothing to repair"),
    ],
)
async def test_undo_is_repaired_only_while_unfinished_and_not_held(
    store: StoreBench,
    reads: Reads,
    task_id: str,
    state: Callable[[StoreBench, str], Awaitable[None]],
    allowed: bool,
    message: str,
    target: UndoState,
) -> None:
    await state(store, task_id)
    before = store.contents(task_id)
    if allowed:
        assert await carry_out(store.store, reads, said(task_id, "stock", target)) == "accepted"
        assert store.row(task_id)["state"] == "Compensating"
        store.is_consistent(task_id)
        return
    assert not await forced_on(store, said(task_id, "stock", target))
    with pytest.raises(Conflict, match=message):
        await carry_out(store.store, reads, said(task_id, "stock", target))
    assert store.contents(task_id) == before


@pytest.mark.demand("F10", "F11")
@pytest.mark.parametrize("target", [SKIPPED, CLOSED])
@pytest.mark.parametrize("found", list(UndoState))
async def test_open_entry_is_repaired_and_a_skipped_one_may_be_closed(
    store: StoreBench, reads: Reads, task_id: str, found: UndoState, target: UndoState
) -> None:
    await refund_refused(store, task_id)
    store.owner(
        "UPDATE compensation SET state = %(state)s WHERE task_id = %(id)s AND step = 'charge'",
        id=task_id,
        state=found.value,
    )
    before = store.contents(task_id)
    if found in OPEN or (found, target) == (SKIPPED, CLOSED):
        assert await carry_out(store.store, reads, said(task_id, "charge", target)) == "accepted"
        assert (2, "charge", target.value) in store.log(task_id)
        return
    assert not await forced_on(store, said(task_id, "charge", target))
    if found is target:
        assert await carry_out(store.store, reads, said(task_id, "charge", target)) == "already"
    else:
        with pytest.raises(Conflict, match=r"step charge of task .* (is undone since|was closed by hand)"):
            await carry_out(store.store, reads, said(task_id, "charge", target))
    assert store.contents(task_id) == before


@pytest.mark.demand("F10")
@pytest.mark.parametrize(
    ("task", "step", "message"),
    [
        ("", "shipp", r"has no step 'shipp' \(there are: stock, charge, ship, confirm\)"),
        ("", "confirm", "has nothing to undo of step confirm: its undo log has ship, charge, stock"),
        ("-no", "stock", "there is no task '.*-no'"),
    ],
)
async def test_repair_of_what_is_not_there_names_what_there_is(
    store: StoreBench, reads: Reads, task_id: str, task: str, step: str, message: str
) -> None:
    await refund_refused(store, task_id)
    with pytest.raises(NotFound, match=message):
        await carry_out(store.store, reads, said(task_id + task, step, SKIPPED))


@pytest.mark.demand("F7", "F10")
async def test_step_with_a_call_under_way_is_not_closed(store: StoreBench, reads: Reads, task_id: str) -> None:
    """Whatever a person has seen: the charge can still arrive, and a hand leaves no tombstone. A skip says nothing."""
    await store.begun(task_id, step="charge")
    await store.store.requests.undo(asked(task_id))
    repair = said(task_id, "charge", CLOSED)
    assert not await forced_on(store, repair)
    with pytest.raises(Conflict, match=r"a call of step charge of task .* may be on its way until 20"):
        await carry_out(store.store, reads, repair)
    assert await carry_out(store.store, reads, said(task_id, "charge", SKIPPED)) == "accepted"
    store.owner(
        "UPDATE step SET complete_by = clock_timestamp() - interval '2 seconds' WHERE task_id = %(id)s", id=task_id
    )
    assert await carry_out(store.store, reads, repair) == "accepted"


@pytest.mark.demand("F7", "F10")
async def test_undo_repair_and_outlook_keep_the_same_late_call_margin(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await store.begun(task_id, step="charge")
    store.owner(
        "UPDATE step SET complete_by = clock_timestamp() - interval '1 minute', quarantine_s = 60 WHERE name = 'charge'"
    )
    with margin_of_an_hour(store):
        await store.store.requests.undo(asked(task_id))
        assert not await forced_on(store, said(task_id, "charge", CLOSED))
        over = store.step(task_id, "charge")["complete_by"] + timedelta(hours=1)
        assert store.row(task_id)["not_before"] == over
        with pytest.raises(Conflict, match=re.escape(f"may be on its way until {instant(over)}")):
            await carry_out(store.store, reads, said(task_id, "charge", CLOSED))


# --- what follows ---------------------------------------------------------------------------------------------


@pytest.mark.demand("F10", "F9", "F3")
async def test_skipped_entry_is_named_and_the_rest_is_undone_in_order(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await refund_refused(store, task_id)
    assert await carry_out(store.store, reads, said(task_id, "charge", SKIPPED)) == "accepted"
    assert await undo_the_rest(store, task_id, "stock") is AttemptEnd.UNDO_FAILED
    assert store.row(task_id)["state"] == "CompensationFailed"
    assert store.row(task_id)["error"] == {"message": "left undone on purpose: charge"}
    assert store.log(task_id) == [(1, "stock", "Undone"), (2, "charge", "Skipped"), (3, "ship", "Undone")]
    alerts = store.owner("SELECT message FROM alert WHERE kind = 'compensation_failed' ORDER BY id")
    assert [a["message"] for a in alerts][1:] == ["left undone on purpose: charge"]
    store.is_consistent(task_id)


@pytest.mark.demand("F10", "F11", "F3")
async def test_failed_entry_closed_by_hand_lets_the_rest_be_undone(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await refund_refused(store, task_id)
    assert await carry_out(store.store, reads, said(task_id, "charge", CLOSED)) == "accepted"
    assert store.step(task_id, "charge")["state"] == "Undone"
    assert await undo_the_rest(store, task_id, "stock") is AttemptEnd.COMPENSATED
    assert store.log(task_id) == [(1, "stock", "Undone"), (2, "charge", "ClosedByHand"), (3, "ship", "Undone")]
    store.is_consistent(task_id)


@pytest.mark.demand("F13", "F10")
@pytest.mark.parametrize(
    ("last", "state", "kind"),
    [(CLOSED, TaskState.COMPENSATED, "compensated"), (SKIPPED, TaskState.COMPENSATION_FAILED, "undo_failed")],
)
async def test_undo_that_is_worked_off_by_hand_ends_without_any_worker(
    store: StoreBench, reads: Reads, task_id: str, last: UndoState, state: TaskState, kind: str
) -> None:
    await refund_refused(store, task_id)
    assert await carry_out(store.store, reads, said(task_id, "charge", CLOSED)) == "accepted"
    assert store.row(task_id)["state"] == "Compensating"
    assert await carry_out(store.store, reads, said(task_id, "stock", last)) == "accepted"
    assert store.row(task_id)["state"] == state
    assert store.kinds(task_id)[-4:] == ["undo_repaired", "undo_repaired", "claimed", kind]
    store.is_consistent(task_id)


@pytest.mark.demand("F13", "F10")
async def test_repair_that_died_before_the_end_is_finished_by_asking_again(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await refund_refused(store, task_id)
    assert await carry_out(store.store, reads, said(task_id, "charge", CLOSED)) == "accepted"
    assert await forced_on(store, said(task_id, "stock", CLOSED))
    assert store.row(task_id)["state"] == "Compensating"
    assert await carry_out(store.store, reads, said(task_id, "stock", CLOSED)) == "already"
    assert store.row(task_id)["state"] == "Compensated"


@pytest.mark.demand("F10")
async def test_new_request_for_undo_opens_skipped_entries_not_closed_ones(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    await refund_refused(store, task_id)
    await carry_out(store.store, reads, said(task_id, "stock", SKIPPED))
    await store.store.undo.fail(await begun_undo(store, task_id, "charge"), "charge", REFUSED)
    await carry_out(store.store, reads, said(task_id, "charge", CLOSED))
    assert store.row(task_id)["state"] == "CompensationFailed"
    await store.store.requests.undo(asked(task_id))
    assert await undo_the_rest(store, task_id, "stock") is AttemptEnd.COMPENSATED
    assert store.log(task_id) == [(1, "stock", "Undone"), (2, "charge", "ClosedByHand"), (3, "ship", "Undone")]


async def begun_undo(store: StoreBench, task_id: str, step: str) -> Hold:
    """An attempt that has begun the undo of this step."""
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold, begin=undo(step))).grant is not None
    return hold


@pytest.mark.failure(34)
@pytest.mark.demand("F10", "C2")
async def test_remaining_entries_get_a_new_key_after_a_repair(store: StoreBench, reads: Reads, task_id: str) -> None:
    """The charge, whose refund was refused, is tried again; where nothing has failed since, the keys stay."""
    await refund_refused(store, task_id)
    for step, target in (("stock", SKIPPED), ("charge", CLOSED)):
        assert await carry_out(store.store, reads, said(task_id, step, target)) == "accepted"
        log = {e.step: e.generation for e in (await reads.page(task_id)).undo_log}
        assert log == {"stock": 0, "charge": 1, "ship": 0}


@pytest.mark.demand("F6", "F10")
async def test_repair_of_another_entry_does_not_cut_a_quarantine_short(
    store: StoreBench, reads: Reads, task_id: str
) -> None:
    hold = await undoing(store, task_id, "ship")
    store.owner("UPDATE step SET quarantine_s = 600 WHERE task_id = %(id)s AND name = 'charge'", id=task_id)
    await store.store.undo.advance(hold, begin=undo("ship"))
    await store.store.undo.advance(hold, done="ship", calls=1, begin=undo("charge"))
    report = await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert report.end is AttemptEnd.RELEASED
    due = store.row(task_id)["not_before"]
    assert await carry_out(store.store, reads, said(task_id, "stock", CLOSED)) == "accepted"
    assert store.row(task_id)["not_before"] == due


@pytest.mark.demand("F6")
async def test_asking_again_for_undo_cuts_no_quarantine_short(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    store.owner("UPDATE step SET quarantine_s = 3600 WHERE name = 'stock'")
    await store.store.requests.undo(asked(task_id))
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold, begin=undo("stock"))).grant is not None
    assert (await store.store.undo.advance(hold, done="stock", calls=1)).end == "Released"
    await store.store.requests.repair_undo(task_id, "stock", SKIPPED, requester="ada", reason="wait")
    hold = await store.claim(task_id)
    assert (await store.store.undo.advance(hold)).end == "UndoFailed"
    await store.store.requests.undo(asked(task_id))
    (row,) = store.owner("SELECT not_before - clock_timestamp() AS left FROM task")
    assert row["left"] > timedelta(minutes=59)


# --- who said what --------------------------------------------------------------------------------------------


@pytest.mark.demand("F10", "G4")
async def test_repair_is_on_record_with_who_why_and_the_evidence(store: StoreBench, reads: Reads, task_id: str) -> None:
    await refund_refused(store, task_id)
    await carry_out(store.store, reads, said(task_id, "charge", CLOSED))
    (event,) = store.owner("SELECT * FROM event WHERE task_id = %(id)s AND kind = 'undo_repaired'", id=task_id)
    assert (event["actor"], event["state_from"], event["state_to"]) == (
        "cli:anna",
        "CompensationFailed",
        "Compensating",
    )
    kept = {"reason": "the bank has paid it back", "evidence": "refund 77 in the bank's list"}
    assert event["detail"] == {"step": "charge", "as": "ClosedByHand", "request": event["detail"]["request"], **kept}
    entry = next(e for e in (await reads.page(task_id)).undo_log if e.step == "charge")
    assert entry.note == {"by": "cli:anna", **kept}


@pytest.mark.demand("F10", "B2")
async def test_one_of_two_repairs_at_once_is_made(store: StoreBench, reads: Reads) -> None:
    for n in range(10):
        task_id = f"t-{n}"
        await refund_refused(store, task_id)
        both = [said(task_id, "charge", SKIPPED, by) for by in ("cli:anna", "cli:ben")]
        assert sorted(await asyncio.gather(*(carry_out(store.store, reads, r) for r in both))) == [
            "accepted",
            "already",
        ]
        entry = next(e for e in (await reads.page(task_id)).undo_log if e.step == "charge")
        (event,) = store.owner("SELECT actor FROM event WHERE task_id = %(id)s AND kind = 'undo_repaired'", id=task_id)
        assert (entry.note or {})["by"] == event["actor"]
        store.is_consistent(task_id)


@pytest.mark.demand("F10", "B2")
async def test_repair_and_claim_at_once_share_no_entry(store: StoreBench, reads: Reads) -> None:
    for n in range(10):
        task_id = f"t-{n}"
        await asked_for(store, task_id)
        claim, verdict = await asyncio.gather(
            store.claim(task_id), carry_out(store.store, reads, said(task_id, "ship", SKIPPED)), return_exceptions=True
        )
        assert isinstance(claim, Hold | ValueError)
        assert verdict == "accepted" or isinstance(verdict, Conflict)
        assert ((3, "ship", "Skipped") in store.log(task_id)) is (verdict == "accepted")
        store.is_consistent(task_id)


@pytest.mark.demand("F10", "F11")
async def test_same_repair_asked_for_again_changes_nothing(store: StoreBench, reads: Reads, task_id: str) -> None:
    await refund_refused(store, task_id)
    repair = said(task_id, "charge", CLOSED)
    assert await carry_out(store.store, reads, repair) == "accepted"
    before = store.contents(task_id)
    assert await carry_out(store.store, reads, repair) == "already"
    assert store.contents(task_id) == before
