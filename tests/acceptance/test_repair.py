"""An undo that calling can't finish: a person skips it, or says that it was done by hand, and the rest is undone.

The refund of these orders is refused for ever. The commands are real processes, the workers and services real parts.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import psycopg
import pytest

from domain.faults import UsageError
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.settings import Settings
from starter import app
from testing.bench import Bench
from testing.simulators import Simulators
from tests.acceptance.test_cli import starter
from tests.acceptance.test_compensation import undone_in_reverse

BY_HAND = ("--done-by-hand", "--evidence", "bank transfer 4711", "--reason", "paid back by hand", "--by", "anna")
SKIP = ("--skip", "--reason", "the customer keeps it")


async def undo_asked_for(bench: Bench, order: dict[str, Any], task_id: str) -> None:
    """An order that was done, and that is to be undone."""
    await bench.submit(order, task_id)
    assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))


async def refund_failed(bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str) -> None:
    """An order whose shipment is undone, whose refund was refused for good, and whose stock was not tried."""
    simulators.fault("payments", "refuse", match={"undo": True, "task_id": task_id})
    await undo_asked_for(bench, order, task_id)
    assert await bench.reached(task_id, TaskState.COMPENSATION_FAILED) is TaskState.COMPENSATION_FAILED


@pytest.mark.failure(34)
@pytest.mark.demand("F10", "F9", "F3", "G4")
async def test_refund_paid_by_hand_lets_the_order_be_compensated(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await refund_failed(bench, simulators, order, task_id)
        before = undone_in_reverse(simulators, task_id)
        tried = await starter(settings, "repair", task_id, "charge", *BY_HAND, "--dry-run")
        assert (await bench.page(task_id)).task.state is TaskState.COMPENSATION_FAILED
        done = await starter(settings, "repair", task_id, "charge", *BY_HAND, "--wait", "-o", "json")
    assert tried.code == 0, tried.err
    assert "would be (nothing was written) closed by hand; left to undo: charge, stock" in tried.out
    assert done.code == 0, done.err
    assert (done.data["verdict"], done.data["state"], done.data["left"]) == ("accepted", "Compensated", [])
    assert undone_in_reverse(simulators, task_id) == [*before, "stock"]
    assert before.count("shipping") == 1
    shown = await starter(settings, "show", task_id)
    (entry,) = (line for line in shown.out.splitlines() if "payments.refund" in line)
    assert "closed by hand" in entry
    assert "by cli:anna: paid back by hand; evidence: bank transfer 4711" in entry
    assert [e.actor for e in (await bench.page(task_id)).events if e.kind == "undo_repaired"] == ["cli:anna"]


@pytest.mark.failure(31)
@pytest.mark.demand("F5", "F8", "F9", "F10")
async def test_charge_too_old_to_refund_is_left_to_a_person(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    """The charge was made a month ago, and the service may have forgotten it."""
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        with psycopg.connect(settings.admin_database_url.get_secret_value()) as owner:
            owner.execute(
                "UPDATE step SET key_since = key_since - interval '31 days' WHERE task_id = %s AND name = 'charge'",
                (task_id,),
            )
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="a late claim"))
        assert await bench.reached(task_id, TaskState.COMPENSATION_FAILED) is TaskState.COMPENSATION_FAILED
        page = await bench.page(task_id)
        assert simulators.calls("payments", task_id, undo=True) == 0
        done = await starter(settings, "repair", task_id, "charge", *BY_HAND, "--wait", "-o", "json")
    assert [a.kind for a in page.alerts] == ["compensation_failed"]
    assert "undo of charge: payments undoes by key for 30 days" in page.alerts[0].message
    assert f"`python starter.py repair {task_id} charge --done-by-hand " in page.alerts[0].message
    assert (page.task.error or {})["code"] == "key_forgotten"
    assert {e.step: e.state for e in page.undo_log} == {"ship": "Undone", "charge": "Failed", "stock": "Logged"}
    assert done.code == 0, done.err
    assert (done.data["verdict"], done.data["state"]) == ("accepted", "Compensated")
    assert undone_in_reverse(simulators, task_id) == ["shipping", "stock"]


@pytest.mark.failure(34)
@pytest.mark.demand("F10", "F8", "F9")
async def test_skipped_refund_stays_in_sight_until_requested_again(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await refund_failed(bench, simulators, order, task_id)
        skipped = await starter(settings, "repair", task_id, "charge", *SKIP, "--wait")
        page = await bench.page(task_id)
        simulators.heal()
        again = await starter(settings, "compensate", task_id, "--reason", "the customer wants it after all", "--wait")
    assert skipped.code == 1, skipped.err
    assert page.task.state is TaskState.COMPENSATION_FAILED
    assert page.alerts[-1].message == "left undone on purpose: charge"
    assert {e.step: e.state for e in page.undo_log} == {"ship": "Undone", "charge": "Skipped", "stock": "Undone"}
    assert again.code == 0, again.err
    assert simulators.live(task_id) == {"mail": 1}
    assert [s for s in undone_in_reverse(simulators, task_id) if s != "payments"] == ["shipping", "stock"]


@pytest.mark.demand("F10", "B2")
async def test_repair_tells_a_held_task_from_an_unknown_step(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="to be undone"))
    await bench.stores.store.claims.claim("elsewhere", [("order", 1)], 1)
    before = await bench.page(task_id)
    held, nothing = await asyncio.gather(
        starter(settings, "repair", task_id, "ship", *SKIP), starter(settings, "repair", task_id, "crate", *SKIP)
    )
    assert (held.code, nothing.code) == (4, 3)
    assert f"step ship of task {task_id} is not tried: {before.task.locked_by} holds the task until 20" in held.err
    assert "has no step 'crate' (there are: stock, charge, ship, confirm)" in nothing.err
    assert (await bench.page(task_id)).events == before.events


@pytest.mark.demand("F10", "G4")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("repair T stock --done-by-hand --reason x", "--evidence must say something"),
        ("repair T stock --skip --reason ''", "--reason must say something"),
        ("repair T stock --reason x", "either --skip or --done-by-hand"),
        ("repair T stock --skip --done-by-hand --evidence x --reason x", "either --skip or --done-by-hand"),
        ("repair T stock --skip --evidence x --reason x", "--evidence goes with --done-by-hand"),
        ("resubmit T --no-effect name --reason x", "--evidence must say something"),
        ("resubmit T --no-effect name --evidence x", "--no-effect needs a --reason"),
        ("resubmit T --evidence x --reason x", "--evidence goes with --no-effect"),
        ("services payments --open", "--reason must say something"),
        ("services payments --open --close --reason x", "give one of --open, --close and --auto"),
        ("services --open --reason x", "say which service"),
    ],
)
def test_incomplete_repair_is_refused_before_anything_is_asked(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        app(shlex.split(given), standalone_mode=False)


@pytest.mark.demand("C8", "G4")
async def test_service_held_by_a_person_gets_no_call_until_released(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        why = ("--reason", "they move house", "--by", "anna")
        shut = await starter(settings, "services", "payments", "--open", *why, "-o", "json")
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "stock", StepState.COMPLETED)
        assert await bench.reached(task_id, TaskState.PENDING) is TaskState.PENDING
        listed, unknown = await asyncio.gather(
            starter(settings, "services"), starter(settings, "services", "paymnets", "--auto", "--reason", "x")
        )
        assert simulators.calls("payments", task_id) == 0
        back = ("--reason", "they are back", "--by", "bert")
        freed = await starter(settings, "services", "payments", "--auto", *back, "-o", "json")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert shut.code == freed.code == 0, shut.err + freed.err
    assert [(s["name"], s["holds"], s["forced_by"]) for s in shut.data] == [("payments", "open", "cli:anna")]
    assert freed.data[0]["holds"] == "closed"
    assert [(m["kind"], m["state_to"], m["requester"], m["reason"]) for m in freed.data[0]["moves"]] == [
        ("by_hand", "closed", "cli:bert", "they are back"),
        ("by_hand", "forced open", "cli:anna", "they move house"),
    ]
    rows = [line.split()[:2] for line in listed.out.splitlines()[1:]]
    assert rows == [[s, "open" if s == "payments" else "closed"] for s in sorted(settings.services)]
    assert "open by cli:anna: they move house" in listed.out
    assert unknown.code == 3
    assert "no definition needs a service 'paymnets' (there are: cloud, mail, payments, shipping, stock)" in unknown.err
