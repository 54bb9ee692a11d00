"""Resubmission by a person: what starts again, with which budget, under which keys, and with which business record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from activities.agent import KEY_FORGOTTEN
from cli.resubmit import Plan, Resubmission, carry_out, prepare
from domain.faults import Conflict, NotFound
from pipelines import registry
from runtime.parts import Stores
from store.orders import Amendment, Orders
from store.reads import Reads
from tests.conftest import ORDER, eventually
from tests.integration.situations import AT_ONCE, REFUSED, asked, in_error, recovered
from tests.integration.store_bench import LOADED, StoreBench, begin


async def resubmit(store: StoreBench, task_id: str) -> bool:
    """A person resubmits."""
    moved, _ = await store.store.resubmit(task_id, requester="anna", reason="corrected", changes={"a": [1, 2]})
    return moved


@pytest.mark.demand("G1", "G4", "C2")
async def test_resubmission_starts_again_with_fresh_budget_and_says_who_and_why(
    store: StoreBench, task_id: str
) -> None:
    await in_error(store, task_id)
    assert await resubmit(store, task_id)
    row, step = store.row(task_id), store.step(task_id, "stock")
    assert (row["state"], row["failure_count"], row["error"]) == ("Pending", 0, None)
    assert (step["budget_left"], step["budget"], step["failure_count"]) == (9, 12, 0)
    (event,) = store.owner("SELECT * FROM event WHERE kind = 'resubmitted'")
    assert (event["actor"], event["detail"]["reason"], event["detail"]["changes"]) == (
        "anna",
        "corrected",
        {"a": [1, 2]},
    )
    hold = await store.claim(task_id)
    assert (await store.store.advance(hold, begin=begin("stock"))).grant is not None


@pytest.mark.demand("C2", "C5")
async def test_key_generation_rises_only_where_it_is_proved_that_no_effect_exists(
    store: StoreBench, task_id: str
) -> None:
    await in_error(store, task_id, unknown=False)
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1
    assert store.step(task_id, "charge")["key_generation"] == 0
    await in_error(store, f"{task_id}-2", unknown=True)
    await resubmit(store, f"{task_id}-2")
    assert store.step(f"{task_id}-2", "stock")["key_generation"] == 0


@pytest.mark.demand("C2", "C5")
@pytest.mark.parametrize(("called", "generation"), [(True, 0), (False, 1)])
async def test_call_of_an_earlier_attempt_keeps_the_key_and_a_certain_absence_of_calls_does_not(
    store: StoreBench, task_id: str, called: bool, generation: int
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", called=called, delay=AT_ONCE)
    hold = await store.claim(task_id)
    grant = (await store.store.advance(hold, begin=begin("stock"))).grant
    assert grant is not None
    assert grant.unknown is called, "the Agent is told, and says so with what it reports"
    await store.store.fail(hold, "stock", REFUSED, unknown=grant.unknown, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == generation


@pytest.mark.demand("C2", "C15")
async def test_key_rises_after_a_call_of_an_earlier_attempt_that_was_asked_about(
    store: StoreBench, task_id: str
) -> None:
    hold = await store.begun(task_id)
    await store.store.release(hold, "draining", step="stock", called=True, delay=AT_ONCE)
    hold = await store.claim(task_id)
    await store.store.advance(hold, begin=begin("stock"))
    await store.store.fail(hold, "stock", REFUSED, unknown=False, then="error")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock")["key_generation"] == 1


@pytest.mark.demand("G1", "B8")
async def test_resubmission_repeats_only_the_step_that_failed(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.store.fail(hold, "charge", REFUSED, unknown=False, then="error")
    before = store.step(task_id, "stock")
    await resubmit(store, task_id)
    assert store.step(task_id, "stock") == before
    assert before["state"] == "Completed"


@pytest.mark.demand("G1")
async def test_only_a_task_in_error_is_resubmitted(store: StoreBench, task_id: str) -> None:
    await store.submitted(task_id)
    for make in (lambda: store.claim(task_id), lambda: store.store.request_undo(asked(task_id)), lambda: None):
        before = store.contents(task_id)
        moved, after = await store.store.resubmit(task_id, requester="anna", reason="why", changes={})
        assert (moved, after and after.state) == (False, store.row(task_id)["state"])
        assert store.contents(task_id) == before
        made = make()
        if made is not None:
            await made
    assert await store.store.resubmit("nobody", requester="anna", reason="why", changes={}) == (False, None)


# --- a correction of the business record ----------------------------------------------------------------------


class People:
    """Who resubmits one task, as the command does: each looks first, and asks then."""

    def __init__(self, store: StoreBench, reads: Reads, task_id: str) -> None:
        self._store, self._reads, self._task_id = store, reads, task_id

    def correction(self, by: str, line1: str | None) -> Resubmission:
        """With a corrected address, or as it is."""
        changes = [f"address.line1={line1}"] if line1 else []
        return Resubmission(self._task_id, f"cli:{by}", "the customer called", changes)

    async def look(self, asked: Resubmission) -> Plan:
        """What somebody sees who asks for this."""
        return await prepare(self._stores(), self._reads, asked)

    async def ask(self, asked: Resubmission, plan: Plan, orders: Orders | None = None) -> None:
        """Go through with it, on what was seen then."""
        await carry_out(self._stores(orders), self._reads, asked, plan)

    def _stores(self, orders: Orders | None = None) -> Stores:
        store = self._store
        return Stores(store.store, orders or store.orders, store.intake, store.services, registry())


@pytest.fixture
def people(store: StoreBench, reads: Reads, task_id: str) -> People:
    """The people who resubmit the task."""
    return People(store, reads, task_id)


def line1(store: StoreBench) -> str:
    """The street in the one business record there is."""
    (row,) = store.orders_owner("SELECT record FROM business_record")
    return str(row["record"]["address"]["line1"])


def corrections(store: StoreBench) -> list[Any]:
    """What the events say of who corrected what."""
    rows = store.owner("SELECT actor, detail FROM event WHERE kind = 'resubmitted' ORDER BY number")
    return [(r["actor"], {path: change["to"] for path, change in r["detail"]["changes"].items()}) for r in rows]


@pytest.mark.demand("G1", "G4")
async def test_of_two_corrections_one_is_made_and_the_other_overwrites_nothing(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    anna, ben = people.correction("anna", "Rue 1"), people.correction("ben", "Rue 2")
    seen = await people.look(anna), await people.look(ben)
    await people.ask(anna, seen[0])
    with pytest.raises(Conflict, match=f"task {task_id} is Pending: somebody else moved it meanwhile"):
        await people.ask(ben, seen[1])
    assert line1(store) == "Rue 1"
    assert corrections(store) == [("cli:anna", {"address.line1": "Rue 1"})]


@pytest.mark.demand("G1", "G4")
async def test_of_corrections_at_the_same_time_the_record_and_the_event_have_the_same_one(
    store: StoreBench, reads: Reads
) -> None:
    for n in range(10):
        people = People(store, reads, f"t-{n}")
        await in_error(store, f"t-{n}")
        both = [people.correction(by, line) for by, line in (("anna", "Rue 1"), ("ben", "Rue 2"))]
        seen = [await people.look(c) for c in both]
        told = await asyncio.gather(
            *(people.ask(c, s) for c, s in zip(both, seen, strict=True)), return_exceptions=True
        )
        assert sorted(type(t) for t in told if t is not None) == [Conflict]
        assert corrections(store) == [(both[told.index(None)].requester, {"address.line1": line1(store)})]
        store.empty()


@pytest.mark.demand("G1", "G4")
async def test_record_of_a_task_that_runs_again_is_not_changed_by_a_correction_that_comes_late(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    late, seen = people.correction("ben", "Rue 2"), await people.look(people.correction("ben", "Rue 2"))
    await people.ask(people.correction("anna", None), await people.look(people.correction("anna", None)))
    assert (await store.store.advance(await store.claim(task_id), begin=begin("stock"))).grant is not None
    before, record = store.contents(task_id), store.orders_owner("SELECT * FROM business_record")
    with pytest.raises(Conflict, match="is Processing: somebody else moved it meanwhile"):
        await people.ask(late, seen)
    assert store.contents(task_id) == before
    assert store.orders_owner("SELECT * FROM business_record") == record


class Waits(Orders):
    """The orders database, in front of which a correction waits until it may go on."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(orders.database)
        self.came, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def amend(self, amendment: Amendment) -> bool:
        self.came.set()
        await self.may_go_on.wait()
        return await super().amend(amendment)


@pytest.mark.demand("G1", "G4", "B2")
async def test_nobody_moves_a_task_while_its_record_is_corrected(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    anna, ben, orders = people.correction("anna", "Rue 1"), people.correction("ben", None), Waits(store.orders)
    first = asyncio.create_task(people.ask(anna, await people.look(anna), orders))
    await orders.came.wait()
    second = asyncio.create_task(people.ask(ben, await people.look(ben)))

    async def waits() -> bool:
        return bool(store.owner("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    await eventually(waits)
    assert await store.store.claim("worker", LOADED, 9, [task_id]) == []
    orders.may_go_on.set()
    await first
    with pytest.raises(Conflict, match="somebody else moved it meanwhile"):
        await second
    assert line1(store) == "Rue 1"
    assert corrections(store) == [("cli:anna", {"address.line1": "Rue 1"})]


class Died(BaseException):
    """The end of a process."""


class Dies(Orders):
    """The orders database of a process that dies when it has corrected the record."""

    async def amend(self, amendment: Amendment) -> bool:
        await super().amend(amendment)
        raise Died


@pytest.mark.demand("G1", "A6")
async def test_correction_that_died_before_the_task_moved_leaves_it_in_error_with_what_was_meant(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    anna, ben = people.correction("anna", "Rue 1"), people.correction("ben", "Rue 2")
    seen = await people.look(anna), await people.look(ben)
    before = store.contents(task_id)
    with pytest.raises(Died):
        await people.ask(anna, seen[0], Dies(store.orders.database))
    assert (line1(store), store.contents(task_id)) == ("Rue 1", before)
    with pytest.raises(Conflict, match=f"task {task_id}: somebody else has amended its record meanwhile"):
        await people.ask(ben, seen[1])
    assert (line1(store), store.contents(task_id)) == ("Rue 1", before)
    await people.ask(ben, await people.look(ben))
    assert corrections(store) == [("cli:ben", {"address.line1": "Rue 2"})]
    assert line1(store) == "Rue 2"


# --- a word on a call of unknown outcome ----------------------------------------------------------------------

FORGOTTEN = {"step": "name", "code": KEY_FORGOTTEN, "message": "cloud remembers keys for a day"}


async def forgotten(store: StoreBench, task_id: str) -> None:
    """A machine in Error, past its pivot: whether it has its name nobody knows, its service neither."""
    hold = await store.begun(task_id, "provisioning", "name")
    await store.store.fail(hold, "name", FORGOTTEN, unknown=True, then="error")


async def spent(store: StoreBench, task_id: str) -> None:
    """A machine in Error, past its pivot, with its last call for the name still without an outcome."""
    await store.begun(task_id, "provisioning", "name")
    store.owner("UPDATE step SET budget_left = 0, reserved = 3 WHERE name = 'name'")
    await recovered(store, task_id)


def days_pass(store: StoreBench, days: int = 3) -> None:
    """Everything on record of steps was so many days ago."""
    store.owner(
        "UPDATE step SET key_since = key_since - %(past)s, complete_by = complete_by - %(past)s",
        past=timedelta(days=days),
    )


def no_effect(task_id: str, step: str = "name") -> Resubmission:
    """A person has looked."""
    return Resubmission(task_id, "cli:anna", "left since Friday", no_effect=step, evidence="no such name in the zone")


async def forced_on(store: StoreBench, asked: Resubmission) -> bool:
    """Ask the statement itself, past every look that comes before it; whether it was accepted."""
    moved, _ = await store.store.resubmit(
        asked.task_id,
        requester=asked.requester,
        reason=asked.reason,
        changes={},
        no_effect=asked.no_effect,
        evidence=asked.evidence,
    )
    return moved


@pytest.mark.demand("G1", "G4", "C2", "C15", "F12")
@pytest.mark.parametrize("state", [forgotten, spent])
async def test_step_whose_unknown_call_had_no_effect_by_a_persons_word_goes_on_with_a_new_key(
    store: StoreBench, people: People, task_id: str, state: Callable[[StoreBench, str], Awaitable[None]]
) -> None:
    await state(store, task_id)
    days_pass(store)
    since = store.step(task_id, "name")["key_since"]
    asked = no_effect(task_id)
    await people.ask(asked, await people.look(asked))
    assert store.row(task_id)["state"] == "Pending"
    step = store.step(task_id, "name")
    assert (step["key_generation"], step["outcome_unknown"], step["key_since"]) == (1, False, None)
    (event,) = store.owner("SELECT actor, detail FROM event WHERE kind = 'resubmitted'")
    assert (event["actor"], event["detail"]["reason"]) == ("cli:anna", "left since Friday")
    told = event["detail"]["no_effect"]
    assert (told["step"], told["evidence"]) == ("name", "no such name in the zone")
    assert datetime.fromisoformat(told["from"].pop("key_since")) == since
    assert told["from"] == {"outcome_unknown": True, "key_generation": 0}
    assert told["to"] == {"outcome_unknown": False, "key_generation": 1, "key_since": None}
    grant = (await store.store.advance(await store.claim(task_id), begin=begin("name", "provisioning"))).grant
    assert grant is not None
    assert (grant.unknown, grant.key_age_s < 60) == (False, True)
    store.is_consistent(task_id)


@pytest.mark.demand("C2", "C15")
async def test_resubmission_without_a_word_keeps_the_key_of_an_unknown_call_and_its_age(
    store: StoreBench, task_id: str
) -> None:
    await forgotten(store, task_id)
    days_pass(store)
    assert await resubmit(store, task_id)
    grant = (await store.store.advance(await store.claim(task_id), begin=begin("name", "provisioning"))).grant
    assert grant is not None
    assert (grant.unknown, grant.key_age_s > 24 * 3600) == (True, True)
    assert store.step(task_id, "name")["key_generation"] == 0


@pytest.mark.demand("G1", "F7")
@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        ("nmae", NotFound, r"has no step 'nmae' \(there are: address, disk, machine, name\)"),
        ("machine", Conflict, "step machine of task .* is Completed, and no call of it has an unknown outcome"),
        ("name", Conflict, "a call of step name of task .* may be on its way until 20.*: look at the service again"),
    ],
)
async def test_word_on_a_step_that_is_not_unknown_or_not_yet_is_refused_and_changes_nothing(
    store: StoreBench, people: People, task_id: str, step: str, error: type[Exception], message: str
) -> None:
    await forgotten(store, task_id)
    before = store.contents(task_id)
    with pytest.raises(error, match=message):
        await people.look(no_effect(task_id, step))
    assert not await forced_on(store, no_effect(task_id, step))
    assert store.contents(task_id) == before


@pytest.mark.demand("G1", "C2")
async def test_word_on_a_step_that_was_refused_for_certain_or_whose_task_is_not_in_error_is_refused(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    days_pass(store)
    with pytest.raises(Conflict, match=r"step stock of task .* is Failed, and no call of it has an"):
        await people.look(no_effect(task_id, "stock"))
    assert not await forced_on(store, no_effect(task_id, "stock"))
    await resubmit(store, task_id)
    with pytest.raises(Conflict, match="is Pending: only a task in Error can be resubmitted"):
        await people.look(no_effect(task_id, "stock"))
    assert not await forced_on(store, no_effect(task_id, "stock"))


@pytest.mark.demand("G1", "G4")
async def test_word_and_correction_go_together(store: StoreBench, people: People, task_id: str) -> None:
    hold = await store.begun(task_id)
    await store.store.fail(hold, "stock", REFUSED, unknown=True, then="error")
    days_pass(store)
    asked = replace(no_effect(task_id, "stock"), changes=["address.line1=Rue 1"])
    await people.ask(asked, await people.look(asked))
    assert (line1(store), store.step(task_id, "stock")["key_generation"]) == ("Rue 1", 1)
    assert ORDER["address"]["line1"] != "Rue 1"
    assert corrections(store) == [("cli:anna", {"address.line1": "Rue 1"})]
