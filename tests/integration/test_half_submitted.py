"""Submissions that died between their writes: never claimed, and confirmed or removed; and starts that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from devstack.servers.temporal import EmbeddedTemporal
from domain.faults import Unreachable
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.dispatcher import Dispatcher
from runtime.plugin import new_plugin
from store.admission import Admission, Admitted, NewTask, Unfinished
from store.breakers import CircuitBreakers
from store.database import Database
from store.housekeeping import Housekeeper
from store.orders import Orders
from store.submission import Accepted, DeadLettered, SubmissionDesk, digest_of
from testing.records import ORDER
from tests.integration.store_bench import (
    LOADED,
    ROOMY,
    StoreBench,
    order_digest,
    registry,
    shipped,
)

NO_TIME = timedelta(0)
RECORD = shipped("order").record.model_validate(ORDER).model_dump(mode="json")


def new_task(task_id: str) -> NewTask:
    """The state row of the order that these tests submit, before its business record."""
    return NewTask(task_id, shipped("order"), order_digest(), "cli", None)


def dispatcher(
    store: StoreBench,
    client: Client,
    orders: Orders | None = None,
    breakers: CircuitBreakers | None = None,
    **terms: Any,
) -> Dispatcher:
    """A dispatcher, and no worker."""
    stores = (store.store, orders or store.orders, breakers or store.breakers)
    return Dispatcher(client, *stores, registry(), worker="worker", slots=10, **terms)


def housekeeper(store: StoreBench, grace: timedelta = NO_TIME) -> Housekeeper:
    """A housekeeper that looks at what is older than `grace`."""
    return Housekeeper(store.admission, store.orders, grace)


async def seen(store: StoreBench) -> Unfinished:
    """The one submission that is not finished, as a housekeeper sees it."""
    (row,) = await store.admission.unconfirmed(NO_TIME, 10, None)
    return row


def records(store: StoreBench) -> list[tuple[Any, Any]]:
    """What the orders database has: record and outcome."""
    rows = store.orders_owner("SELECT record, outcome FROM business_record")
    return [(r["record"], r["outcome"]) for r in rows]


# --- a submission that is not finished ------------------------------------------------------------------------


@pytest.mark.failure(7, 57)
@pytest.mark.demand("A6")
@pytest.mark.parametrize("with_record", [False, True], ids=["before its record", "before it was confirmed"])
async def test_submission_that_died_midway_is_finished_by_redelivery(
    store: StoreBench, task_id: str, with_record: bool
) -> None:
    assert await store.admission.admit(new_task(task_id)) == Admitted(new=True)
    if with_record:
        assert await store.orders.create(task_id, "order", RECORD, order_digest())
    assert store.kinds(task_id) == ["submitted"]
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False)
    assert records(store) == [(ORDER, None)]
    assert store.kinds(task_id) == ["submitted", "confirmed"]


@pytest.mark.failure(57)
@pytest.mark.demand("A6", "B6")
@pytest.mark.parametrize("with_record", [False, True], ids=["before its record", "before it was confirmed"])
async def test_submission_that_is_not_confirmed_is_no_task_yet(
    store: StoreBench, task_id: str, with_record: bool
) -> None:
    await store.admission.admit(new_task(task_id))
    if with_record:
        await store.orders.create(task_id, "order", RECORD, order_digest())
    before = store.contents(task_id)
    assert await store.store.claims.claim("worker", LOADED, 10) == []
    verdict = await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="never mind"))
    assert verdict.verdict == "not_found"
    assert await store.store.requests.resubmit(task_id, requester="anna", reason="again", changes={}) == (False, None)
    await store.store.steps.note_late(task_id, "stock", {}, actor="order/t/1")
    assert store.contents(task_id) == before


@pytest.mark.demand("A6")
async def test_housekeeper_leaves_a_submission_alone_while_its_grace_lasts(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    before = store.contents(task_id)
    await housekeeper(store, timedelta(hours=1)).tidy()
    assert store.contents(task_id) == before
    assert records(store) == []


@pytest.mark.failure(57)
@pytest.mark.demand("A6")
async def test_submission_without_its_record_is_removed_and_may_start_over(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    await housekeeper(store).tidy()
    assert store.contents(task_id)[:4] == [[], [], [], []]
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "submission_abandoned"
    assert alert["message"].startswith("its submission by cli, 20")
    assert records(store) == [(None, "abandoned")]
    assert await store.submit(task_id) == Accepted(task_id, "order", new=True)
    assert records(store) == [(ORDER, None)]
    assert store.kinds(task_id) == ["submitted", "confirmed"]


@pytest.mark.failure(57)
@pytest.mark.demand("A1", "A6")
async def test_unconfirmed_submission_is_confirmed_by_the_housekeeper(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    await store.orders.create(task_id, "order", RECORD, order_digest())
    await housekeeper(store).tidy()
    (event,) = store.owner("SELECT actor FROM event WHERE kind = 'confirmed'")
    assert event["actor"] == "housekeeper"
    assert [c.task.task_id for c in await store.store.claims.claim("worker", LOADED, 10)] == [task_id]
    assert store.owner("SELECT * FROM alert") == []


@pytest.mark.failure(57)
@pytest.mark.demand("A3", "A4", "A6")
async def test_submission_on_anothers_record_is_never_run_and_is_removed(store: StoreBench, task_id: str) -> None:
    """The orders database holds another record of that id: the submitter got a conflict, so nothing may happen."""
    other = {**ORDER, "card_token": "tok_other"}
    await store.orders.create(task_id, "order", other, digest_of("order", other))
    assert isinstance(await store.submit(task_id), DeadLettered)
    assert store.kinds(task_id) == ["submitted"]
    await housekeeper(store).tidy()
    assert store.contents(task_id)[0] == []
    assert records(store) == [(other, None)]


@pytest.mark.demand("A7")
async def test_unfinished_submissions_count_in_the_caps_until_removed(store: StoreBench, task_id: str) -> None:
    capped = Admission(store.database, ROOMY.__class__(in_flight=1, pending=1, pending_age=timedelta(hours=1)))
    await store.admission.admit(new_task(task_id))
    assert not isinstance(await capped.admit(new_task(f"{task_id}-2")), Admitted)
    await housekeeper(store).tidy()
    assert await capped.admit(new_task(f"{task_id}-2")) == Admitted(new=True)


@pytest.mark.demand("A6", "A9")
async def test_housekeeper_comes_to_every_row_although_some_stay(store: StoreBench) -> None:
    for n in range(205):
        await store.admission.admit(new_task(f"t-{n:03}"))

    class Stuck(Admission):
        """Rows that nobody can remove."""

        async def remove(self, seen: Unfinished) -> bool:
            return seen.task_id > "t-149" and await super().remove(seen)

    keeper = Housekeeper(Stuck(store.database, ROOMY), store.orders, NO_TIME)
    for _ in range(3):
        await keeper.tidy()
    assert len(store.owner("SELECT * FROM task")) == 150
    assert not store.owner("SELECT * FROM task WHERE task_id > 't-149'")


@pytest.mark.failure(60)
@pytest.mark.demand("A6", "A9")
async def test_row_that_stays_unconfirmed_is_an_alert_and_delays_no_other(
    store: StoreBench,
) -> None:
    for task_id in ("t-1", "t-2"):
        await store.admission.admit(new_task(task_id))
        await store.orders.create(task_id, "order", RECORD, order_digest())
    store.owner(
        "INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)"
        " VALUES ('t-1', 2, 'noted', 'Pending', 'Pending', 0, 'nobody', '{}')"
    )
    for _ in range(2):
        await housekeeper(store).tidy()
    assert [store.row(t)["confirmed"] for t in ("t-1", "t-2")] == [False, True]
    (alert,) = store.owner("SELECT kind, task_id FROM alert")
    assert alert == {"kind": "submission_stuck", "task_id": "t-1"}


# --- races ----------------------------------------------------------------------------------------------------


@pytest.mark.failure(57)
@pytest.mark.demand("A1", "A6")
async def test_acknowledged_submission_outlives_a_slow_housekeeper(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    row = await seen(store)
    assert await store.orders.abandon(task_id, "order", order_digest()), "and here the housekeeper pauses"
    assert isinstance(await store.submit(task_id), Accepted)
    assert await store.admission.remove(row) is False
    assert records(store) == [(ORDER, None)]
    assert store.kinds(task_id) == ["submitted", "confirmed"]


class Slow:
    """A housekeeper that gets going exactly between two writes of a submitter."""

    def __init__(self, store: StoreBench, task_id: str, write: str) -> None:
        self._store, self._task_id, self._write, self._done = store, task_id, write, False
        self.admission, self.orders = store.admission, store.orders

    async def meanwhile(self, name: str) -> None:
        """Once, in front of this write."""
        if name == self._write and not self._done:
            self._done = True
            for _ in range(2):
                await housekeeper(self._store).tidy()

    async def admit(self, new: NewTask) -> Any:
        """As the admission's."""
        await self.meanwhile("admit")
        return await self.admission.admit(new)

    async def create(self, *args: Any) -> Any:
        """As the orders database's."""
        await self.meanwhile("create")
        return await self.orders.create(*args)

    async def confirm(self, *args: Any, **more: Any) -> Any:
        """As the admission's."""
        await self.meanwhile("confirm")
        return await self.admission.confirm(*args, **more)


@pytest.mark.failure(57)
@pytest.mark.demand("A1", "A6")
@pytest.mark.parametrize("write", ["admit", "create", "confirm"])
@pytest.mark.parametrize("before", [False, True], ids=["first delivery", "redelivery"])
async def test_submitter_overtaken_by_a_housekeeper_gets_one_whole_task(
    store: StoreBench, task_id: str, write: str, before: bool
) -> None:
    if before:
        await store.admission.admit(new_task(task_id))
    slow: Any = Slow(store, task_id, write)
    late = SubmissionDesk(slow, slow, registry())
    message = late.parse(json.dumps({"task_id": task_id, "definition": "order", "record": ORDER}))
    assert isinstance(await late.submit(message), Accepted)
    assert records(store) == [(ORDER, None)]
    assert store.kinds(task_id) == ["submitted", "confirmed"]
    store.is_consistent(task_id)


@pytest.mark.failure(57)
@pytest.mark.demand("A2", "A6")
async def test_housekeepers_and_submitters_at_once_leave_one_whole_task(store: StoreBench, task_id: str) -> None:
    for n in range(10):
        one = f"{task_id}-{n}"
        await store.admission.admit(new_task(one))
        tidying = (housekeeper(store).tidy() for _ in range(3))
        submitting = (store.submit(one) for _ in range(3))
        done = await asyncio.gather(*tidying, *submitting)
        assert [type(v) for v in done[3:]] == [Accepted] * 3
        assert store.kinds(one) == ["submitted", "confirmed"]


@pytest.mark.demand("A6")
async def test_only_the_very_row_that_was_seen_is_removed(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    row = await seen(store)
    assert await store.admission.remove(row) is True
    assert await store.admission.remove(row) is False
    await store.admission.admit(new_task(task_id))
    assert await store.admission.remove(row) is False, "another submission of the same id"


@pytest.mark.demand("A3", "A6")
async def test_row_of_another_submission_is_not_confirmed_by_this_ones_record(store: StoreBench, task_id: str) -> None:
    await store.admission.admit(new_task(task_id))
    assert await store.admission.confirm(task_id, "another digest", actor="submission") is False
    assert store.kinds(task_id) == ["submitted"]


@pytest.mark.failure(8)
@pytest.mark.demand("A3", "A4")
async def test_repeated_conflict_is_one_dead_letter_and_one_alert(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    for _ in range(3):
        assert isinstance(await store.submit(task_id, currency="CHF"), DeadLettered)
    await asyncio.gather(*(store.submit(task_id, currency="CHF") for _ in range(10)))
    assert isinstance(await store.submit(task_id, currency="USD"), DeadLettered)
    letters = store.owner("SELECT message FROM dead_letter ORDER BY id")
    assert [x["message"]["record"]["currency"] for x in letters] == ["CHF", "USD"]
    assert [a["kind"] for a in store.owner("SELECT kind FROM alert")] == ["dead_letter"] * 2


# --- starts that fail -----------------------------------------------------------------------------------------


def waits_s(store: StoreBench, task_id: str) -> float:
    """For how many seconds a task was told to wait."""
    row = store.row(task_id)
    return round(float((row["not_before"] - row["updated_at"]).total_seconds()), 1)


async def again(store: StoreBench, starter: Dispatcher) -> None:
    """A round in which everything is due, and nothing can be started."""
    store.owner("UPDATE task SET not_before = clock_timestamp()")
    assert await starter.run_once() == []


@pytest.fixture
async def nowhere(temporal_server: EmbeddedTemporal) -> Client:
    """A client of a namespace that there is not: every start is refused."""
    return await Client.connect(temporal_server.address, namespace="nowhere", plugins=[new_plugin()])


@pytest.mark.failure(42)
@pytest.mark.demand("B3", "B9")
async def test_task_with_refused_starts_waits_ever_longer_with_one_alert(
    store: StoreBench, nowhere: Client, task_id: str
) -> None:
    await store.submit(task_id)
    starter, waits = dispatcher(store, nowhere), []
    for _ in range(11):
        await again(store, starter)
        waits.append(waits_s(store, task_id))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0), "it is not its own fault"
    (alert,) = store.owner("SELECT kind, message FROM alert")
    assert alert["kind"] == "start_refused"
    assert "nowhere" in alert["message"]
    store.is_consistent(task_id)


LARGE = {**ORDER, "lines": [{**ORDER["lines"][0], "sku": "x" * 3_000_000}]}


async def too_large(store: StoreBench, task_id: str) -> None:
    """A task whose input is more than Temporal takes."""
    await store.submit(task_id)
    store.orders_owner(
        "UPDATE business_record SET record = %(record)s WHERE task_id = %(id)s", id=task_id, record=json.dumps(LARGE)
    )


@pytest.mark.failure(42)
@pytest.mark.demand("B3", "B9")
async def test_task_whose_starts_are_refused_ends_in_error_with_its_cause(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await too_large(store, task_id)
    starter = dispatcher(store, client)
    for _ in range(10):
        assert store.row(task_id)["state"] == "Pending"
        await again(store, starter)
    row = store.row(task_id)
    assert (row["state"], row["failure_count"]) == ("Error", 1)
    assert row["error"]["code"] == "start_refused"
    assert "Temporal refuses to start the run" in row["error"]["message"]
    alerts = store.owner("SELECT kind, message FROM alert ORDER BY id")
    assert [a["kind"] for a in alerts] == ["start_refused", "task_in_error"]
    assert store.kinds(task_id)[-1] == "failed"
    store.is_consistent(task_id)
    await store.store.requests.resubmit(task_id, requester="anna", reason="again", changes={})
    await again(store, starter)
    assert (store.row(task_id)["state"], waits_s(store, task_id)) == ("Pending", 1), "counted from one again"


class Unwilling:
    """Temporal's client, which is refused every start."""

    async def start_workflow(self, *_: Any, **__: Any) -> None:
        """Refuse it."""
        raise RPCError("not this one", RPCStatusCode.INVALID_ARGUMENT, b"")


@pytest.mark.failure(42)
@pytest.mark.demand("B3", "F9")
async def test_undo_whose_start_is_always_refused_fails_with_its_cause(store: StoreBench, task_id: str) -> None:
    await store.begun(task_id)
    await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="by mistake"))
    unwilling: Any = Unwilling()
    starter = dispatcher(store, unwilling)
    for _ in range(10):
        assert store.row(task_id)["state"] == "Compensating"
        await again(store, starter)
    assert (store.row(task_id)["state"], store.row(task_id)["failure_count"]) == ("CompensationFailed", 1)
    assert store.kinds(task_id)[-1] == "undo_failed"
    assert store.owner("SELECT kind FROM alert ORDER BY id")[-1]["kind"] == "compensation_failed"
    store.is_consistent(task_id)


@pytest.mark.failure(42)
@pytest.mark.demand("B3", "B9")
async def test_task_whose_start_is_refused_keeps_no_other_from_starting(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await too_large(store, task_id)
    await store.submit(f"{task_id}-2")
    assert [s.task_id for s in await dispatcher(store, client).run_once()] == [f"{task_id}-2"]


@pytest.mark.failure(47)
@pytest.mark.demand("F1", "H9")
async def test_undo_is_started_although_the_orders_database_does_not_answer(
    store: StoreBench, client: Client, task_id: str
) -> None:
    await store.begun(task_id)
    await store.store.requests.undo(UndoRequest(task_id=task_id, requester="anna", reason="by mistake"))
    await store.submit(f"{task_id}-2")
    async with Database("postgresql://nobody@127.0.0.1:1/orders", name="orders database") as away:
        starter = dispatcher(store, client, Orders(away))
        assert [s.task_id for s in await starter.run_once([TaskState.COMPENSATING])] == [task_id]
        with pytest.raises(Unreachable, match="orders database"):
            await starter.run_once([TaskState.PENDING])
    row = store.row(f"{task_id}-2")
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    store.is_consistent(f"{task_id}-2")


# --- records that are lost ------------------------------------------------------------------------------------


async def confirmed(store: StoreBench, task_id: str) -> None:
    """It was acknowledged, and has not begun."""
    await store.submit(task_id)


async def begun(store: StoreBench, task_id: str) -> None:
    """It has begun a step."""
    hold = await store.begun(task_id)
    await store.store.steps.release(hold, "draining", step="stock", sent=None, delay=NO_TIME)


@pytest.mark.failure(57)
@pytest.mark.demand("A1", "A6", "B6")
@pytest.mark.parametrize("history", [confirmed, begun])
async def test_task_without_its_record_waits_ever_longer_with_one_alert(
    store: StoreBench, client: Client, task_id: str, history: Callable[[StoreBench, str], Awaitable[None]]
) -> None:
    await history(store, task_id)
    store.orders_owner("DELETE FROM business_record")
    starter, waits = dispatcher(store, client), []
    for _ in range(11):
        await again(store, starter)
        waits.append(waits_s(store, task_id))
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    await housekeeper(store).tidy()
    assert records(store) == [], "putting it back is no conflict"
    row = store.row(task_id)
    assert (row["state"], row["locked_by"], row["failure_count"]) == ("Pending", None, 0)
    (alert,) = store.owner("SELECT kind, task_id, message FROM alert")
    assert (alert["kind"], alert["task_id"]) == ("record_missing", task_id)
    assert "put the record back, and it goes on" in alert["message"]
    store.is_consistent(task_id)
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False), "and its submitter can put it back"
    assert records(store) == [(ORDER, None)]
