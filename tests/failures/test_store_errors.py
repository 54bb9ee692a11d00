"""What the store can't write, will not write, or has written before in other words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from temporalio.client import WorkflowFailureError

import store.database
from definitions.order import ORDER, Order
from devstack.servers.postgres import EmbeddedPostgres
from domain.definition import Definition, Registry
from domain.states import StepState, TaskState
from store.submission import Accepted, DeadLettered, InvalidSubmission, Submission, SubmissionDesk
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from tests.acceptance.test_outages import away


@pytest.mark.failure(46)
@pytest.mark.demand("B8", "B9", "D6")
async def test_unwritten_boundary_ends_the_run_and_the_call_keeps_its_key(
    bench: Bench,
    simulators: Simulators,
    templates: EmbeddedPostgres,
    databases: Databases,
    order: dict[str, Any],
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store is away for longer than a write is repeated; the shipment is booked, and not on record."""
    monkeypatch.setattr(store.database, "_PATIENCE_S", 0.5)
    simulators.fault("shipping", "latency", latency_ms=500, times=1, match={"task_id": task_id})
    async with bench.worker():
        await bench.submit(order, task_id)
        await simulators.called("shipping", task_id)
        run = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))
        with away(templates, databases.owner), pytest.raises(WorkflowFailureError) as failed:
            await run.result()
        assert failed.value.cause.type == "NotRecorded"  # type: ignore[attr-defined]
        ship = next(s for s in (await bench.page(task_id)).steps if s.name == "ship")
        assert (ship.state, ship.failure_count) == (StepState.RUNNING, 0)
        await bench.expire(task_id)
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    expired = [e.detail["failed"] for e in (await bench.page(task_id)).events if e.kind == "expired"]
    assert expired == [["ship"]], "the database server was not started meanwhile, so it is a failure of the step"
    assert simulators.live(task_id) == FULL
    assert {c["key"] for c in simulators.ledger("shipping", task_id)["calls"]} == {f"{task_id}:ship:0"}


@pytest.mark.failure(59)
async def test_error_at_commit_rolls_back_and_keeps_the_connection(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    """The constraint that every transition has its event is judged at the COMMIT, which is sent with all the rest."""
    await bench.submit(order, task_id)
    before = await bench.page(task_id)
    database = bench.stores.store.database
    silent = "UPDATE task SET not_before = now(), last_event = last_event + 1 WHERE task_id = %(task_id)s"
    for _ in range(2 * 8):  # more often than the pool has connections
        with pytest.raises(psycopg.errors.CheckViolation, match="has no event"):
            await database.transaction((silent, {"task_id": task_id}))
    after = await bench.page(task_id)
    assert (after.task, list(after.events)) == (before.task, list(before.events))
    assert await database.rows("SELECT 1 AS one") == [{"one": 1}]


# --- a message that is delivered again, after a release ---------------------------------------------------------


class Wrapped(Order):
    """What a later version takes: one more field, that older messages lack."""

    wrapping: str = "none"


def desk_of(bench: Bench, *definitions: Definition) -> SubmissionDesk:
    """Where a release with these definitions takes submissions in."""
    return SubmissionDesk(bench.stores.admission, bench.stores.orders, Registry(definitions))


@pytest.mark.failure(7)
@pytest.mark.demand("A1", "A2", "A3")
async def test_redelivery_after_a_release_is_the_same_submission(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    message = Submission(task_id=task_id, definition="order", record=order)
    assert await desk_of(bench, ORDER).submit(message) == Accepted(task_id, "order", new=True)
    released = desk_of(bench, ORDER, replace(ORDER, version=2, record=Wrapped))
    assert await released.submit(message) == Accepted(task_id, "order", new=False)
    assert (await bench.page(task_id)).task.version == 1


@pytest.mark.failure(8)
@pytest.mark.demand("A3", "A4")
async def test_different_submission_after_a_release_is_a_conflict(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    await desk_of(bench, ORDER).submit(Submission(task_id=task_id, definition="order", record=order))
    released = desk_of(bench, ORDER, replace(ORDER, version=2, record=Wrapped))
    other = Submission(task_id=task_id, definition="order", record={**order, "currency": "CHF"})
    assert isinstance(await released.submit(other), DeadLettered)
    assert [a.kind for a in (await bench.page(task_id)).alerts] == ["dead_letter"]


class Stricter(ORDER.record):  # type: ignore[name-defined]
    """An order as a later release wants it: with what no earlier message has."""

    vat_id: str


@pytest.mark.failure(7)
@pytest.mark.demand("A2", "A3")
async def test_message_a_new_release_can_not_read_counts_as_redelivery_only(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    message = Submission(task_id=task_id, definition="order", record=order)
    assert await desk_of(bench, ORDER).submit(message) == Accepted(task_id, "order", new=True)
    released = desk_of(bench, ORDER, replace(ORDER, version=2, record=Stricter))
    assert await released.submit(message) == Accepted(task_id, "order", new=False)
    with pytest.raises(InvalidSubmission, match=r"record\.vat_id: Field required"):
        await released.submit(message.model_copy(update={"task_id": f"{task_id}-new"}))
