"""A crash between the two writes of a submission, and rows that a dispatcher may not run: put back, or removed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from runtime.dispatcher import Dispatcher
from runtime.embedded.temporal import EmbeddedTemporal
from runtime.plugin import new_plugin
from store.intake import Admitted, Intake, NewTask
from store.snapshot import Snapshot
from store.submission import Accepted, Conflict, SubmissionDesk, digest_of
from tests.conftest import ORDER
from tests.integration.situations import recovered
from tests.integration.store_bench import (
    LOADED,
    ROOMY,
    StoreBench,
    begin,
    definition,
    order_digest,
    registry,
)


def new_task(task_id: str) -> NewTask:
    """The state row of the order that these tests submit, before its business record."""
    return NewTask(task_id, definition("order"), order_digest(), "cli", None)


def dispatcher(store: StoreBench, client: Client, grace: timedelta) -> Dispatcher:
    """A dispatcher that removes what lacks its business record for longer than `grace`."""
    return Dispatcher(
        client,
        store.store,
        store.orders,
        store.intake,
        store.services,
        registry(),
        worker="worker",
        slots=10,
        orphan_grace=grace,
    )


@pytest.mark.demand("A6")
async def test_submission_that_died_between_its_writes_is_completed_by_the_next_delivery(
    store: StoreBench, task_id: str
) -> None:
    assert await store.intake.admit(new_task(task_id)) == Admitted(new=True)
    assert store.orders_owner("SELECT * FROM business_record") == []
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False)
    assert len(store.orders_owner("SELECT * FROM business_record")) == 1
    assert store.kinds(task_id) == ["submitted"]


@pytest.mark.demand("A6", "B6")
async def test_unpaired_row_is_put_back_while_its_grace_lasts(store: StoreBench, client: Client, task_id: str) -> None:
    await store.intake.admit(new_task(task_id))
    assert await dispatcher(store, client, timedelta(hours=1)).run_once() == []
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    assert row["not_before"] > row["updated_at"]
    assert store.kinds(task_id) == ["submitted", "claimed", "released"]
    assert store.orders_owner("SELECT * FROM business_record") == []
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False)


@pytest.mark.demand("A6")
async def test_unpaired_row_is_removed_after_its_grace_and_a_later_submission_starts_over(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await store.intake.admit(new_task(task_id))
    assert await dispatcher(store, client, timedelta(0)).run_once() == []
    assert store.contents(task_id)[:4] == [[], [], [], []]
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "submission_abandoned"
    assert alert["message"].startswith("its submission by cli, 20")
    assert "no claim has found a business record of its own" in alert["message"]
    (record,) = store.orders_owner("SELECT record, outcome FROM business_record")
    assert record == {"record": None, "outcome": "abandoned"}
    assert await store.submit(task_id) == Accepted(task_id, "order", new=True)
    (record,) = store.orders_owner("SELECT record, outcome FROM business_record")
    assert record == {"record": ORDER, "outcome": None}
    assert store.kinds(task_id) == ["submitted"]


@pytest.mark.demand("A6")
async def test_pair_that_is_complete_after_all_is_not_removed(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    await store.store.release_unstarted((await store.store.claim("w", LOADED, 1))[0], "no record yet", timedelta(0))
    assert await store.orders.abandon(task_id, "order", order_digest()) is False
    (record,) = store.orders_owner("SELECT outcome FROM business_record")
    assert record["outcome"] is None


async def _found_unpaired(store: StoreBench, task_id: str) -> Snapshot:
    """A dispatcher has found a row without its record, has closed the record, and pauses before it removes the row."""
    await store.intake.admit(new_task(task_id))
    (claim,) = await store.store.claim("worker", LOADED, 1)
    await store.store.release_unstarted(claim, "no record yet", timedelta(0))
    seen = await store.store.snapshot(task_id)
    assert seen is not None
    assert await store.orders.abandon(task_id, "order", order_digest())
    return seen


@pytest.mark.demand("A1", "A6")
async def test_submission_that_was_acknowledged_is_not_removed_by_who_found_it_unpaired_before(
    store: StoreBench, task_id: str
) -> None:
    seen = await _found_unpaired(store, task_id)
    assert isinstance(await store.submit(task_id), Accepted)
    assert await store.intake.withdraw(seen, "removed") is False
    assert store.row(task_id)["state"] == "Pending"
    assert store.kinds(task_id) == ["submitted", "claimed", "released", "noted"]


@pytest.mark.demand("A1", "A6")
async def test_submission_that_relies_on_anothers_record_is_not_removed_either(store: StoreBench, task_id: str) -> None:
    seen = await _found_unpaired(store, task_id)
    record = definition("order").record.model_validate(ORDER).model_dump(mode="json")
    # another submitter starts the record over, and dies before it has looked at the row again
    assert await store.orders.create(task_id, "order", record, order_digest()) == "restarted"
    assert isinstance(await store.submit(task_id), Accepted)
    assert await store.intake.withdraw(seen, "removed") is False


@pytest.mark.demand("A6")
async def test_row_that_was_removed_before_the_submitter_looked_again_is_made_anew(
    store: StoreBench, task_id: str
) -> None:
    seen = await _found_unpaired(store, task_id)

    class Overtaken(Intake):
        """The dispatcher wakes up exactly between this submitter's admission and its record."""

        async def admit(self, new: NewTask) -> Any:
            found = await super().admit(new)
            if not getattr(self, "removed", False):
                self.removed = await store.intake.withdraw(seen, "removed")
            return found

    late = SubmissionDesk(Overtaken(store.database, ROOMY), store.orders, registry())
    message = late.parse(json.dumps({"task_id": task_id, "pipeline": "order", "record": ORDER}))
    assert await late.submit(message) == Accepted(task_id, "order", new=True)
    assert store.kinds(task_id) == ["submitted"]


@pytest.mark.demand("A6")
async def test_row_whose_steps_have_begun_or_that_is_not_the_one_that_was_seen_is_not_removed(
    store: StoreBench, task_id: str
) -> None:
    seen = await _found_unpaired(store, task_id)
    assert await store.intake.withdraw(seen.model_copy(update={"task_id": "nobody"}), "removed") is False
    assert await store.intake.withdraw(seen, "removed") is True
    await store.submitted(task_id)
    claim = (await store.store.claim("worker", LOADED, 1))[0]
    await store.store.release_unstarted(claim, "again", timedelta(0))
    assert await store.intake.withdraw(seen, "removed") is False, "another row of the same id, as many events old"
    hold = await store.claim(task_id)
    assert (await store.store.advance(hold, begin=begin("stock"))).grant is not None
    await store.store.release(hold, "draining", step="stock", sent=None, delay=timedelta(0))
    begun = await store.store.snapshot(task_id)
    assert begun is not None
    assert await store.intake.withdraw(begun, "removed") is False


@pytest.mark.demand("B3", "B9")
async def test_start_that_is_refused_for_good_gives_the_row_back_and_alerts_once(
    store: StoreBench, temporal_server: EmbeddedTemporal, task_id: str
) -> None:
    await store.submit(task_id)
    nowhere = await Client.connect(temporal_server.address, namespace="nowhere", plugins=[new_plugin()])
    for _ in range(2):
        assert await dispatcher(store, nowhere, timedelta(hours=1)).run_once() == []
        (event,) = store.owner("SELECT detail FROM event ORDER BY number DESC LIMIT 1")
        assert event["detail"]["record"] == "there"
        row = store.row(task_id)
        assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
        store.owner("UPDATE task SET not_before = clock_timestamp()")
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "start_refused"
    assert "nowhere" in alert["message"]


@pytest.mark.demand("A3", "A4", "A6")
async def test_row_whose_business_record_is_anothers_is_never_run(
    store: StoreBench, client: Client, task_id: str
) -> None:
    """The orders database holds another record of that id: the submitter got a conflict, so nothing may happen."""
    other = {**ORDER, "card_token": "tok_other"}
    await store.orders.create(task_id, "order", other, digest_of("order", other))
    assert isinstance(await store.submit(task_id), Conflict)
    assert await dispatcher(store, client, timedelta(hours=1)).run_once() == []
    assert store.kinds(task_id) == ["submitted", "claimed", "released"]
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    assert await dispatcher(store, client, timedelta(0)).run_once() == []
    assert store.contents(task_id)[0] == []
    (record,) = store.orders_owner("SELECT record FROM business_record")
    assert record["record"] == other


# --- records that are lost ------------------------------------------------------------------------------------


def lose_record(store: StoreBench) -> None:
    """The orders database has lost what it had."""
    store.orders_owner("DELETE FROM business_record")


async def look_again(store: StoreBench, client: Client) -> float:
    """A claim of what is not due yet, whose grace is long over; for how many seconds the task waits then."""
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    assert await dispatcher(store, client, timedelta(0)).run_once() == []
    (row,) = store.owner("SELECT extract(epoch FROM not_before - updated_at)::float8 AS wait_s FROM task")
    return round(row["wait_s"], 1)


@pytest.mark.demand("A1", "A6", "B6")
async def test_begun_task_whose_record_is_lost_waits_for_it_longer_and_longer_with_one_alert(
    store: StoreBench, client: Client, task_id: str
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", sent=None, delay=timedelta(0))
    lose_record(store)
    waits = [await look_again(store, client) for _ in range(11)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert store.orders_owner("SELECT * FROM business_record") == [], "putting it back is no conflict"
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    (alert,) = store.owner("SELECT kind, task_id, message FROM alert")
    assert (alert["kind"], alert["task_id"]) == ("record_missing", task_id)
    assert f"task {task_id} has begun" in alert["message"]
    assert "put the record back, and it goes on" in alert["message"]
    store.is_consistent(task_id)


@pytest.mark.demand("A6")
async def test_submission_that_is_finished_late_waits_no_longer(
    store: StoreBench, client: Client, task_id: str
) -> None:
    """The orders database was away between its writes, and a dispatcher has looked in vain again and again."""
    await store.intake.admit(new_task(task_id))
    store.owner("UPDATE task SET created_at = created_at - interval '2 hours'")
    assert [await look_again(store, client) for _ in range(4)] == [1, 2, 4, 8]
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False)
    assert [c.task.task_id for c in await store.store.claim("worker", LOADED, 1)] == [task_id]
    store.is_consistent(task_id)


async def claimed_long_afterwards(store: StoreBench, _: Client, task_id: str) -> None:
    """Nobody looked at it for two hours."""
    await store.submit(task_id)
    store.owner("UPDATE task SET created_at = created_at - interval '2 hours'")


async def not_started(store: StoreBench, client: Client, task_id: str) -> None:
    """One claim came before its record, the next one found it, but the run could not be started."""
    await store.intake.admit(new_task(task_id))
    await dispatcher(store, client, timedelta(hours=1)).run_once()
    await store.submit(task_id)
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    (claim,) = await store.store.claim("worker", LOADED, 1)
    await store.store.release_unstarted(claim, "Temporal did not start the run", timedelta(0), record="there")


async def kept(store: StoreBench, _: Client, task_id: str) -> None:
    """Its submitter has made sure that it stays, when a dispatcher was about to remove it."""
    await _found_unpaired(store, task_id)
    await store.submit(task_id)


async def expired(store: StoreBench, client: Client, task_id: str) -> None:
    """One claim came before its record, and the next one was lost with its worker."""
    await store.intake.admit(new_task(task_id))
    await dispatcher(store, client, timedelta(hours=1)).run_once()
    await store.submit(task_id)
    await store.claim(task_id)
    await recovered(store, task_id)


@pytest.mark.demand("A1", "A6")
@pytest.mark.parametrize("history", [claimed_long_afterwards, not_started, kept, expired])
async def test_task_that_may_have_been_acknowledged_is_not_removed_when_its_record_is_lost(
    store: StoreBench,
    client: Client,
    task_id: str,
    history: Callable[[StoreBench, Client, str], Awaitable[None]],
) -> None:
    await history(store, client, task_id)
    lose_record(store)
    assert await look_again(store, client) >= 1
    assert store.row(task_id)["state"] == "Pending"
    assert store.orders_owner("SELECT * FROM business_record") == []
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "record_missing"
    assert f"task {task_id} may have been acknowledged" in alert["message"]
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False), "and its submitter can complete it"
