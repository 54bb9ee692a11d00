"""A person's word, with a resubmission, that a call of unknown outcome had no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from domain.faults import KEY_FORGOTTEN, Conflict, NotFound
from operators.resubmit import Resubmission
from testing.records import ORDER
from tests.integration.resubmitting import People, corrections, line1, resubmit
from tests.integration.situations import REFUSED, in_error, recovered
from tests.integration.store_bench import StoreBench, begin

FORGOTTEN = {"step": "name", "code": KEY_FORGOTTEN, "message": "cloud remembers keys for a day"}


async def forgotten(store: StoreBench, task_id: str) -> None:
    """A machine in Error, past its pivot: whether it has its name nobody knows, its service neither."""
    hold = await store.begun(task_id, "provisioning", "name")
    await store.store.forward.fail(hold, "name", FORGOTTEN, unknown=True, then="error")


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
    moved, _ = await store.store.requests.resubmit(
        asked.task_id,
        requester=asked.requester,
        reason=asked.reason,
        changes={},
        no_effect=asked.no_effect,
        evidence=asked.evidence,
    )
    return moved


@pytest.mark.failure(31)
@pytest.mark.demand("G1", "G4", "C2", "C15", "F12")
@pytest.mark.parametrize("state", [forgotten, spent])
async def test_step_that_a_person_found_without_effect_gets_a_new_key(
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
    grant = (await store.store.forward.advance(await store.claim(task_id), begin=begin("name", "provisioning"))).grant
    assert grant is not None
    assert (grant.unknown, grant.key_age_s < 60) == (False, True)
    store.is_consistent(task_id)


@pytest.mark.demand("C2", "C15")
async def test_plain_resubmission_keeps_the_key_and_age_of_an_unknown_call(store: StoreBench, task_id: str) -> None:
    await forgotten(store, task_id)
    days_pass(store)
    assert await resubmit(store, task_id)
    grant = (await store.store.forward.advance(await store.claim(task_id), begin=begin("name", "provisioning"))).grant
    assert grant is not None
    assert (grant.unknown, grant.key_age_s > 24 * 3600) == (True, True)
    assert store.step(task_id, "name")["key_generation"] == 0


@pytest.mark.failure(31)
@pytest.mark.demand("G1", "F7")
@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        ("nmae", NotFound, r"has no step 'nmae' \(there are: address, disk, machine, name\)"),
        ("machine", Conflict, "step machine of task .* is Completed, and no call of it has an unknown outcome"),
        ("name", Conflict, "a call of step name of task .* may be on its way until 20.*: look at the service again"),
    ],
)
async def test_finding_on_a_step_without_an_unknown_outcome_is_refused(
    store: StoreBench, people: People, task_id: str, step: str, error: type[Exception], message: str
) -> None:
    await forgotten(store, task_id)
    before = store.contents(task_id)
    with pytest.raises(error, match=message):
        await people.look(no_effect(task_id, step))
    assert not await forced_on(store, no_effect(task_id, step))
    assert store.contents(task_id) == before


@pytest.mark.demand("G1", "C2")
async def test_finding_on_a_refused_step_or_outside_error_is_refused(
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
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=True, then="error")
    days_pass(store)
    asked = replace(no_effect(task_id, "stock"), changes=["address.line1=Rue 1"])
    await people.ask(asked, await people.look(asked))
    assert (line1(store), store.step(task_id, "stock")["key_generation"]) == ("Rue 1", 1)
    assert ORDER["address"]["line1"] != "Rue 1"
    assert corrections(store) == [("cli:anna", {"address.line1": "Rue 1"})]
