"""Submission: two stores, no shared transaction, both writes idempotent on the task id; caps in the insert itself."""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from domain.undo_requests import UndoRequest
from store.admission import Admission, AdmissionCaps, CapReached, NewTask
from store.submission import MOST_BYTES, Accepted, DeadLettered, InvalidSubmission, SubmissionDesk, digest_of
from supervisor.decide import decide
from testing.records import MACHINE, ORDER
from tests.integration.store_bench import (
    ROOMY,
    StoreBench,
    order_digest,
    registry,
    shipped,
)


def desk(store: StoreBench, **caps: Any) -> SubmissionDesk:
    """Where submissions are taken in, under these caps."""
    terms = {"in_flight": ROOMY.in_flight, "pending": ROOMY.pending, "pending_age": ROOMY.pending_age, **caps}
    return SubmissionDesk(Admission(store.database, AdmissionCaps(**terms)), store.orders, registry())


def message(task_id: str = "t-1", definition: str = "order", **record: Any) -> str:
    """A submission as it comes."""
    base = {"order": ORDER, "provisioning": MACHINE}.get(definition, ORDER)
    return json.dumps({"task_id": task_id, "definition": definition, "record": {**base, **record}})


# --- both writes ----------------------------------------------------------------------------------------------


@pytest.mark.demand("A1", "A5")
async def test_accepted_task_is_pending_with_its_record_and_steps(store: StoreBench, task_id: str) -> None:
    text = json.dumps(
        {"task_id": task_id, "definition": "order", "record": ORDER, "submitter": "shop", "reply_to": "shop-replies"}
    )
    verdict = await store.desk.submit(store.desk.parse(text))
    assert verdict == Accepted(task_id, "order", new=True)
    row = store.row(task_id)
    assert (row["state"], row["epoch"], row["failure_count"]) == ("Pending", 0, 0)
    assert (row["locked_by"], row["complete_by"], row["run_id"]) == (None, None, None)
    assert (row["submitter"], row["reply_to"]) == ("shop", "shop-replies")
    assert (row["data_class"], row["version"]) == ("confidential", 1)
    steps = store.owner("SELECT name, state, budget, budget_left, undo_budget_left FROM step ORDER BY position")
    assert [s["name"] for s in steps] == [s.name for s in shipped("order").steps]
    assert {s["state"] for s in steps} == {"NotStarted"}
    assert [(s["budget_left"], s["undo_budget_left"]) for s in steps] == [(9, 30), (9, 30), (9, 30), (9, 0)]
    (record,) = store.orders_owner("SELECT * FROM business_record")
    assert (record["record"], record["digest"], record["outcome"]) == (ORDER, row["record_digest"], None)
    assert store.kinds(task_id) == ["submitted", "confirmed"]


@pytest.mark.failure(7)
@pytest.mark.demand("A2", "A3")
async def test_fifty_submissions_of_one_id_at_once_are_one_accepted_task(store: StoreBench, task_id: str) -> None:
    verdicts = await asyncio.gather(*(store.submit(task_id) for _ in range(50)))
    assert all(isinstance(v, Accepted) for v in verdicts)
    assert sum(isinstance(v, Accepted) and v.new for v in verdicts) == 1
    assert len(store.owner("SELECT task_id FROM task")) == 1
    assert store.kinds(task_id) == ["submitted", "confirmed"]
    assert len(store.orders_owner("SELECT task_id FROM business_record")) == 1


@pytest.mark.failure(8)
@pytest.mark.demand("A3", "A4")
async def test_different_one_of_fifty_is_dead_lettered_and_overwrites_nothing(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    before, record = store.contents(task_id)[:4], store.orders_owner("SELECT * FROM business_record")
    changed = {"lines": [{**ORDER["lines"][0], "unit_price_minor": 1}]}
    several = [store.submit(task_id, **(changed if n == 25 else {})) for n in range(50)]
    verdicts = await asyncio.gather(*several)
    (conflict,) = [v for v in verdicts if not isinstance(v, Accepted)]
    assert isinstance(conflict, DeadLettered)
    assert store.contents(task_id)[:4] == before
    assert store.orders_owner("SELECT * FROM business_record") == record
    (letter,) = store.owner("SELECT * FROM dead_letter")
    assert letter["message"]["record"]["lines"] == changed["lines"]
    assert letter["task_id"] == task_id
    (alert,) = store.owner("SELECT kind, task_id FROM alert")
    assert alert == {"kind": "dead_letter", "task_id": task_id}


@pytest.mark.failure(110)
@pytest.mark.demand("A4")
async def test_guessed_id_of_anothers_task_reveals_only_that_it_is_taken(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    guess = await store.submit(task_id, currency="CHF")
    assert guess == DeadLettered(task_id, "its content differs from the record of that task id")


@pytest.mark.demand("A3", "A4")
async def test_same_id_for_another_definition_is_a_conflict(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    assert isinstance(await store.submit(task_id, "provisioning"), DeadLettered)


@pytest.mark.demand("A3")
async def test_settled_task_submitted_again_is_accepted_and_not_run_again(store: StoreBench, task_id: str) -> None:
    await store.processed(task_id)
    before = store.contents(task_id)
    assert await store.submit(task_id) == Accepted(task_id, "order", new=False)
    assert store.contents(task_id) == before


@pytest.mark.demand("A2", "A3")
async def test_order_of_keys_and_white_space_do_not_make_another_submission(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    record = dict(reversed(ORDER.items()))
    text = json.dumps({"definition": "order", "record": record, "task_id": task_id}, indent=4)
    assert await store.desk.submit(store.desk.parse(text)) == Accepted(task_id, "order", new=False)


# --- caps -----------------------------------------------------------------------------------------------------


@pytest.mark.failure(73)
@pytest.mark.demand("A7", "A9")
@pytest.mark.parametrize("cap", ["in_flight", "pending"])
async def test_of_200_concurrent_submissions_a_cap_of_100_accepts_exactly_100(store: StoreBench, cap: str) -> None:
    capped = desk(store, **{cap: 100})
    verdicts = await asyncio.gather(*(capped.submit(capped.parse(message(f"t-{n}"))) for n in range(200)))
    refused = [v for v in verdicts if isinstance(v, CapReached)]
    assert sum(isinstance(v, Accepted) for v in verdicts) == 100
    assert len(refused) == 100
    assert all(v.retry_after > timedelta(0) and "100" in v.reason for v in refused)
    assert len(store.owner("SELECT task_id FROM task")) == 100
    assert len(store.owner("SELECT task_id FROM event WHERE kind = 'submitted'")) == 100
    written = {r["task_id"] for r in store.orders_owner("SELECT task_id FROM business_record")}
    assert written.isdisjoint(v.task_id for v in refused)


@pytest.mark.demand("A7")
@pytest.mark.parametrize("cap", [{"in_flight": 1}, {"pending": 1}, {"pending_age": timedelta(minutes=5)}], ids=str)
async def test_caps_that_one_definition_has_reached_refuse_no_other(store: StoreBench, cap: dict[str, Any]) -> None:
    await store.submitted("t-old")
    store.owner("UPDATE task SET not_before = clock_timestamp() - interval '10 minutes'")
    capped = desk(store, **cap)
    refused = await capped.submit(capped.parse(message("t-1")))
    assert isinstance(refused, CapReached)
    assert "order" in refused.reason
    machine = await capped.submit(capped.parse(message("t-2", "provisioning")))
    assert machine == Accepted("t-2", "provisioning", new=True)


@pytest.mark.demand("A7")
async def test_tasks_at_work_count_as_in_flight_and_not_as_pending(store: StoreBench) -> None:
    for n in range(2):
        await store.claimed(f"t-{n}")
    roomy, full = desk(store, pending=1), desk(store, in_flight=2)
    assert isinstance(await full.submit(full.parse(message("t-2"))), CapReached)
    assert isinstance(await roomy.submit(roomy.parse(message("t-2"))), Accepted)
    refused = await roomy.submit(roomy.parse(message("t-3")))
    assert isinstance(refused, CapReached)
    assert "pending" in refused.reason


@pytest.mark.failure(73)
@pytest.mark.demand("A7")
async def test_old_backlog_refuses_new_submissions_saying_its_age(store: StoreBench) -> None:
    await store.submitted("t-old")
    store.owner("UPDATE task SET not_before = clock_timestamp() - interval '10 minutes'")
    capped = desk(store, pending_age=timedelta(minutes=5))
    refused = await capped.submit(capped.parse(message("t-new")))
    assert isinstance(refused, CapReached)
    assert "0:10:00" in refused.reason
    assert refused.retry_after > timedelta(0)
    store.owner("UPDATE task SET not_before = clock_timestamp() - interval '4 minutes'")
    assert isinstance(await capped.submit(capped.parse(message("t-new"))), Accepted)


@pytest.mark.failure(73)
@pytest.mark.demand("A7", "A8")
async def test_task_that_waits_on_purpose_closes_admission_for_nobody(store: StoreBench) -> None:
    await store.submitted("t-waiting")
    store.owner(
        "UPDATE task SET state_since = clock_timestamp() - interval '1 hour',"
        " not_before = clock_timestamp() + interval '4 minutes'"
    )
    capped = desk(store, pending_age=timedelta(minutes=5))
    assert isinstance(await capped.submit(capped.parse(message("t-new"))), Accepted)


@pytest.mark.demand("A2", "A7")
async def test_redelivery_is_recognised_while_the_caps_are_reached(store: StoreBench, task_id: str) -> None:
    await store.submit(task_id)
    full = desk(store, pending=1)
    assert await full.submit(full.parse(message(task_id))) == Accepted(task_id, "order", new=False)
    changed = message(task_id, card_token="another")
    assert isinstance(await full.submit(full.parse(changed)), DeadLettered)


@pytest.mark.demand("A8")
async def test_recovery_undo_and_resubmission_are_never_refused_by_a_cap(store: StoreBench) -> None:
    """The caps are a parameter of the insert alone; here they are long passed."""
    hold = await store.begun("t-1")
    failed = await store.begun("t-2")
    for n in range(3, 9):
        await store.submitted(f"t-{n}")
    full = desk(store, pending=1, in_flight=1)
    assert isinstance(await full.submit(full.parse(message("t-9"))), CapReached)
    await store.store.forward.fail(failed, "stock", {"message": "no"}, unknown=False, then="error")
    assert (await store.store.requests.resubmit("t-2", requester="a", reason="b", changes={}))[0]
    store.expire("t-1")
    (found,) = await store.supervision.expired(window=timedelta(days=1), page=9, after=(None, ""))
    assert await store.supervision.recover([decide(found)]) == [("t-1", hold.locked_by)]
    verdict = await store.store.requests.undo(UndoRequest(task_id="t-3", requester="a", reason="b"))
    assert verdict.verdict == "accepted"
    states = {r["task_id"]: r["state"] for r in store.owner("SELECT task_id, state FROM task")}
    assert (states["t-1"], states["t-2"], states["t-3"]) == ("Pending", "Pending", "Compensating")


async def test_refused_row_is_not_written_at_all(store: StoreBench, task_id: str) -> None:
    full = Admission(store.database, AdmissionCaps(1, 1, timedelta(days=1)))
    await store.submitted("first")
    assert isinstance(await full.admit(NewTask(task_id, shipped("order"), order_digest(), "cli", None)), CapReached)
    assert store.contents(task_id) == [[], [], [], [], []]


# --- the digest -----------------------------------------------------------------------------------------------


def fields(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every field of a record."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in fields(v, (*path, k))]
    if isinstance(value, list):
        return [p for n, v in enumerate(value) for p in fields(v, (*path, n))]
    return [path]


def changed(record: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The record with another value at that path."""
    copy = deepcopy(record)
    place: Any = copy
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return copy


values = st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False))


@pytest.mark.failure(8)
@pytest.mark.demand("A3")
@settings(deadline=None)
@given(st.sampled_from([ORDER, MACHINE]), st.data())
def test_another_value_in_any_field_gives_another_digest(record: dict[str, Any], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(fields(record)))
    value = data.draw(values)
    other = changed(record, path, value)
    assume(json.dumps(other) != json.dumps(record))
    assert digest_of("order", other) != digest_of("order", record)
    assert digest_of("order", record) != digest_of("provisioning", record)


@pytest.mark.demand("A3")
@settings(deadline=None)
@given(st.permutations(list(ORDER)))
def test_order_of_keys_does_not_change_the_digest(keys: list[str]) -> None:
    assert digest_of("order", {k: ORDER[k] for k in keys}) == digest_of("order", ORDER)


# --- bad input ------------------------------------------------------------------------------------------------


def line(**more: Any) -> dict[str, Any]:
    """An order's line."""
    return {"lines": [{**ORDER["lines"][0], **more}]}


@pytest.mark.failure(23, 113)
@pytest.mark.demand("A1")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (message(**line(unit_price_minor=-5)), ["record.lines.0.unit_price_minor", "-5"]),
        (message(**line(quantity="many")), ["record.lines.0.quantity", '"many"']),
        (message(**line(quantity=0)), ["record.lines.0.quantity", "0"]),
        (message(lines=[]), ["record.lines", "[]"]),
        (message(currency="euro"), ["record.currency", '"euro"']),
        (message(customer=None), ["record.customer", "null"]),
        (message(colour="red"), ["record.colour", '"red"']),
        (message(definition="ordr"), ["definition", "'ordr'", "order, provisioning"]),
        (message(definition="provisioning", disk_gib="x"), ["record.disk_gib", '"x"']),
        (message(""), ["task_id", '""']),
        (message("a b"), ["task_id", '"a b"']),
        (message("a/b"), ["task_id", '"a/b"']),
        (message("t-1\n"), ["task_id"]),
        (message("ü"), ["task_id"]),
        (message("x" * 129), ["task_id"]),
        ('{"task_id": "t-1", "definition": "order"}', ["record: Field required"]),
        ('{"task_id": "t-1", "definition": "order", "record": []}', ["record", "[]"]),
        ('{"task_id": 7, "definition": "order", "record": {}}', ["task_id", "7"]),
        ('{"task_id": "t-1", "definition": "order", "record": {}, "priority": 1}', ["priority", "1"]),
        ('{"task_id": "t-1"', ["Invalid JSON"]),
        ("", ["Invalid JSON"]),
        ("[]", ["[]"]),
        (message(card_token="a\x00b"), ["record.card_token", "NUL"]),
        (message(**line(unit_price_minor=True)), ["record.lines.0.unit_price_minor", "not true"]),
        (message(**line(unit_price_minor="2999")), ["record.lines.0.unit_price_minor", 'not "2999"']),
        (message(**line(unit_price_minor=2999.0)), ["record.lines.0.unit_price_minor", "not 2999.0"]),
        (message(**line(unit_price_minor=float("nan"))), ["record.lines.0.unit_price_minor", "NaN"]),
        (message(**line(unit_price_minor=10**400)), ["record.lines.0.unit_price_minor", "64 bits"]),
        (message().replace('"currency"', '"currency": "CHF", "currency"'), ["record.currency", "given twice"]),
        (message(customer=[[]] * 2000), ["record.customer"]),
        (message("-h"), ["task_id", '"-h"']),
        ('{"task_id": "t-1", "definition": "order", "record": {}, "submitter": "a\\u0000"}', ["submitter", "NUL"]),
        (json.dumps({f"field-{n}": "x" * 1000 for n in range(200)}), ["and 183 more"]),
    ],
    ids=lambda value: "" if isinstance(value, str) else value[0],
)
async def test_wrong_message_is_refused_naming_field_and_value(store: StoreBench, text: str, said: list[str]) -> None:
    with pytest.raises(InvalidSubmission) as error:
        await store.desk.submit(store.desk.parse(text))
    for part in said:
        assert part in str(error.value)
    assert store.owner("SELECT * FROM task") == []


async def test_every_wrong_field_is_named_at_once(store: StoreBench) -> None:
    wrong = message(currency="euro", card_token="", **line(unit_price_minor=-1, quantity=-1))
    with pytest.raises(InvalidSubmission) as error:
        await store.desk.submit(store.desk.parse(wrong))
    assert len(error.value.problems) == 4


@pytest.mark.failure(21, 113)
@pytest.mark.demand("A1")
def test_message_over_256_kib_is_refused_and_no_smaller_one(store: StoreBench) -> None:
    spare = MOST_BYTES - len(message().encode())
    most = message() + " " * spare
    assert store.desk.parse(most).task_id == "t-1"
    for too_much in (most + " ", (most + " ").encode(), message(card_token="ü" * MOST_BYTES)):
        with pytest.raises(InvalidSubmission, match="at most 262144 are taken"):
            store.desk.parse(too_much)


async def test_long_value_is_shown_shortened(store: StoreBench) -> None:
    with pytest.raises(InvalidSubmission) as error:
        await store.desk.submit(store.desk.parse(message(currency="E" * 10_000)))
    assert len(str(error.value)) < 300
