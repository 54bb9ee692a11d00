"""A correction of the business record that comes with a resubmission: made once, by one person, and told truly."""

from __future__ import annotations

import asyncio

import pytest

from domain.faults import Conflict
from operators.resubmit import Plan, Resubmission
from store.orders import Amendment, Orders
from store.reads import Reads
from testing.waiting import eventually
from tests.integration.resubmitting import People, corrections, line1
from tests.integration.situations import in_error
from tests.integration.store_bench import LOADED, StoreBench, begin


async def two_corrections(store: StoreBench, people: People, task_id: str) -> list[tuple[Resubmission, Plan]]:
    """A task in Error, and what two people ask who have both looked at it."""
    await in_error(store, task_id)
    asked = [people.correction("anna", "Rue 1"), people.correction("ben", "Rue 2")]
    return [(a, await people.look(a)) for a in asked]


@pytest.mark.demand("G1", "G4")
async def test_of_two_corrections_the_second_overwrites_nothing(
    store: StoreBench, people: People, task_id: str
) -> None:
    (anna, annas), (ben, bens) = await two_corrections(store, people, task_id)
    await people.ask(anna, annas)
    with pytest.raises(Conflict, match=f"task {task_id} is Pending: somebody else moved it meanwhile"):
        await people.ask(ben, bens)
    assert line1(store) == "Rue 1"
    assert corrections(store) == [("cli:anna", {"address.line1": "Rue 1"})]


@pytest.mark.failure(36)
@pytest.mark.demand("G1", "G4")
async def test_of_corrections_at_once_record_and_event_keep_the_same_one(store: StoreBench, reads: Reads) -> None:
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


@pytest.mark.failure(36)
@pytest.mark.demand("G1", "G4")
async def test_late_correction_changes_no_record_of_a_task_that_runs_again(
    store: StoreBench, people: People, task_id: str
) -> None:
    await in_error(store, task_id)
    late, seen = people.correction("ben", "Rue 2"), await people.look(people.correction("ben", "Rue 2"))
    await people.ask(people.correction("anna", None), await people.look(people.correction("anna", None)))
    assert (await store.store.forward.advance(await store.claim(task_id), begin=begin("stock"))).grant is not None
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


@pytest.mark.failure(36)
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
    assert await store.store.claims.claim("worker", LOADED, 9, [task_id]) == []
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


@pytest.mark.failure(36)
@pytest.mark.demand("G1", "A6")
async def test_correction_that_died_midway_leaves_the_task_in_error(
    store: StoreBench, people: People, task_id: str
) -> None:
    (anna, annas), (ben, bens) = await two_corrections(store, people, task_id)
    before = store.contents(task_id)
    with pytest.raises(Died):
        await people.ask(anna, annas, Dies(store.orders.database))
    assert (line1(store), store.contents(task_id)) == ("Rue 1", before)
    with pytest.raises(Conflict, match=f"task {task_id}: somebody else has amended its record meanwhile"):
        await people.ask(ben, bens)
    assert (line1(store), store.contents(task_id)) == ("Rue 1", before)
    await people.ask(ben, await people.look(ben))
    assert corrections(store) == [("cli:ben", {"address.line1": "Rue 2"})]
    assert line1(store) == "Rue 2"
