"""Who may write: the holder of a task alone, before its deadline; what it writes twice counts once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from domain.attempts import AttemptEnd, WriteResult
from store.claims import Hold
from store.state_store import StateStore
from tests.integration.situations import AT_ONCE, REFUSED, asked, in_error, recovered, undo_begun, undo_failed, undoing
from tests.integration.store_bench import RUN, StoreBench, begin, undo

# --- the holder, and nobody else ------------------------------------------------------------------------------

FORWARD: dict[str, Callable[[StateStore, Hold], Awaitable[WriteResult]]] = {
    "advance": lambda s, h: s.forward.advance(h, done="stock", result={}, calls=1, begin=begin("charge")),
    "begin": lambda s, h: s.forward.advance(h, begin=begin("stock")),
    "fail": lambda s, h: s.forward.fail(h, "stock", REFUSED, unknown=False, then="undo"),
    "give_up": lambda s, h: s.steps.give_up(h, "stock", "no more calls"),
    "release": lambda s, h: s.steps.release(h, "draining", step="stock", sent=0, delay=AT_ONCE),
}
BACKWARD: dict[str, Callable[[StateStore, Hold], Awaitable[WriteResult]]] = {
    "undo_advance": lambda s, h: s.undo.advance(h, done="charge", calls=1, begin=undo("stock")),
    "undo_begin": lambda s, h: s.undo.advance(h, begin=undo("charge")),
    "undo_fail": lambda s, h: s.undo.fail(h, "charge", REFUSED),
    "undo_give_up": lambda s, h: s.steps.give_up(h, "charge", "no more calls"),
    "undo_release": lambda s, h: s.steps.release(h, "draining", step="charge", sent=0, delay=AT_ONCE),
}
WRITES = {**FORWARD, **BACKWARD}
TIMED = [name for name in WRITES if "release" not in name]


async def at_work(store: StoreBench, task_id: str, write: str) -> Hold:
    """A held task on which this write is due."""
    if write in FORWARD:
        return await store.begun(task_id)
    return await undo_begun(store, task_id)


@pytest.mark.demand("B2", "B11")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("stranger", ["an older epoch", "another run of the same attempt"])
async def test_who_does_not_hold_the_task_changes_nothing_and_is_told(
    store: StoreBench, task_id: str, write: str, stranger: str
) -> None:
    hold = await at_work(store, task_id, write)
    strangers = {
        "an older epoch": replace(hold, locked_by=f"order/{task_id}/{hold.epoch - 1}"),
        "another run of the same attempt": replace(hold, run_id="run-after-a-reset"),
    }
    before = store.contents(task_id)
    report = await WRITES[write](store.store, strangers[stranger])
    assert report.end is AttemptEnd.SUPERSEDED
    assert report.grant is None
    assert store.contents(task_id) == before


@pytest.mark.failure(10)
@pytest.mark.demand("B2", "B11")
@pytest.mark.parametrize("undoing", [False, True])
@pytest.mark.parametrize("nonce", ["", "made up", "of the claim before"])
async def test_run_without_the_nonce_of_the_claim_binds_to_nothing(
    store: StoreBench, task_id: str, undoing: bool, nonce: str
) -> None:
    before = await store.begun(task_id)
    if undoing:
        await store.store.requests.undo(asked(task_id))
    else:
        await store.store.steps.release(before, "draining", step="stock", sent=0, delay=AT_ONCE)
    hold = await store.claim(task_id)
    forged = replace(hold, run_id="by hand", nonce=before.nonce if nonce == "of the claim before" else nonce)
    found = store.contents(task_id)
    for write in BACKWARD if undoing else FORWARD:
        report = await WRITES[write](store.store, forged)
        assert (report.end, report.grant, report.result) == (AttemptEnd.SUPERSEDED, None, None), write
        assert store.contents(task_id) == found
    if undoing:
        assert (await store.store.undo.advance(hold, begin=undo("stock"))).grant is not None
    else:
        assert (await store.store.forward.advance(hold, begin=begin("stock"))).grant is not None


@pytest.mark.failure(16)
@pytest.mark.demand("B2", "C9", "C10")
@pytest.mark.parametrize("write", TIMED)
async def test_holder_past_its_deadline_changes_nothing_and_is_told(
    store: StoreBench, task_id: str, write: str
) -> None:
    hold = await at_work(store, task_id, write)
    store.expire(task_id)
    before = store.contents(task_id)
    report = await WRITES[write](store.store, hold)
    assert report.end is AttemptEnd.DEADLINE_PASSED
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
    assert report.end not in (AttemptEnd.SUPERSEDED, AttemptEnd.DEADLINE_PASSED)
    assert store.row(task_id)["last_event"] == before + 1
    (last,) = store.owner("SELECT detail FROM event WHERE task_id = %(id)s ORDER BY number DESC LIMIT 1", id=task_id)
    assert last["detail"]["run_id"] == RUN
    store.is_consistent(task_id)


async def test_holder_may_let_go_after_its_deadline_until_evicted(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    store.expire(task_id)
    report = await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=AT_ONCE)
    assert report.end is AttemptEnd.RELEASED
    again = await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=AT_ONCE)
    assert again.end is AttemptEnd.RELEASED
    store.is_consistent(task_id)


@pytest.mark.demand("B2", "B11")
async def test_evicted_holder_finds_its_successor_and_changes_nothing(store: StoreBench, task_id: str) -> None:
    zombie = await store.begun(task_id)
    await recovered(store, task_id)
    successor = await store.claim(task_id, "run-2")
    await store.store.forward.advance(successor, begin=begin("stock"))
    before = store.contents(task_id)
    for write in FORWARD.values():
        assert (await write(store.store, zombie)).end is AttemptEnd.SUPERSEDED
    assert store.contents(task_id) == before
    assert (await store.store.forward.advance(successor, done="stock", result={}, calls=1)).end is None


@pytest.mark.demand("B2", "F1")
async def test_run_whose_task_is_to_be_undone_is_told_so(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.requests.undo(asked(task_id))
    assert (await FORWARD["advance"](store.store, hold)).end is AttemptEnd.UNDO_REQUESTED


async def test_write_about_a_task_that_is_not_there_is_superseded(store: StoreBench) -> None:
    report = await store.store.forward.advance(Hold("nobody", "order/nobody/1", RUN, ""), begin=begin("stock"))
    assert (report.end, report.cause) == (AttemptEnd.SUPERSEDED, "there is no task nobody")


# --- run twice ------------------------------------------------------------------------------------------------


@pytest.mark.demand("B8", "C13")
async def test_boundary_written_twice_returns_its_result_and_reserves_nothing(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    first = await store.store.forward.advance(hold, done="stock", result={"n": 1}, calls=1, begin=begin("charge"))
    assert first.grant is not None
    assert first.result == {"n": 1}
    before = store.contents(task_id)
    second = await store.store.forward.advance(hold, done="stock", result={"n": 2}, calls=3, begin=begin("charge"))
    assert (second.end, second.result, second.grant) == (None, {"n": 1}, None)
    assert store.contents(task_id) == before


@pytest.mark.demand("B8")
async def test_step_that_is_done_is_not_begun_again(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.forward.advance(hold, done="stock", result={"n": 1}, calls=1)
    before = store.contents(task_id)
    report = await store.store.forward.advance(hold, begin=begin("stock"))
    assert (report.end, report.result, report.grant) == (None, {"n": 1}, None)
    assert store.contents(task_id) == before


@pytest.mark.demand("B11")
async def test_last_boundary_that_is_written_twice_says_processed_twice(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="confirm")
    for _ in range(2):
        assert (await store.store.forward.advance(hold, done="confirm", result={}, calls=1)).end is AttemptEnd.PROCESSED
    assert store.kinds(task_id).count("processed") == 1
    assert store.row(task_id)["locked_by"] is None


@pytest.mark.demand("C5", "F11")
async def test_faults_that_are_recorded_twice_say_the_same_twice(store: StoreBench, task_id: str) -> None:
    hold = await in_error(store, task_id)
    again = await store.store.forward.fail(hold, "stock", REFUSED, unknown=False, then="error")
    assert (again.end, again.cause) == (AttemptEnd.PERMANENT_FAULT, "there is none")
    assert store.kinds(task_id).count("failed") == 1
    hold = await undo_failed(store, f"{task_id}-2")
    again = await store.store.undo.fail(hold, "charge", {"message": "never"})
    assert again.end is AttemptEnd.UNDO_FAILED
    assert store.kinds(f"{task_id}-2").count("undo_failed") == 1


@pytest.mark.demand("F11")
async def test_undo_that_is_finished_is_not_repeated(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    await store.store.undo.advance(hold, begin=undo("charge"))
    first = await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))
    assert first.grant is not None
    before = store.contents(task_id)
    assert (await store.store.undo.advance(hold, done="charge", calls=1, begin=undo("stock"))).grant is None
    assert (await store.store.undo.advance(hold, begin=undo("charge"))).grant is None
    assert store.contents(task_id) == before
