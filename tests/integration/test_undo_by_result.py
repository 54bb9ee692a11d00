"""An undo gets what its step returned: as far as anybody was told, or as the service says when it is asked by key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from activities.agent import Agent, action
from activities.agents import catalogue
from activities.asked_by_key import AskedByKey
from activities.call import Call
from definitions.agent_checks import misfits
from domain.definition import Undo
from domain.messages import Completed, GaveUp, Json
from store.inbox import InboxStore
from testing.served import served
from tests.integration.asked import ask
from tests.integration.situations import asked, undoing
from tests.integration.store_bench import StoreBench, undo
from tests.unit.test_definition import definition, step

CHARGED: Json = {"charge_id": "ch-1"}


# --- what the store knows -------------------------------------------------------------------------------------


@pytest.mark.demand("F2")
async def test_undo_is_granted_with_the_recorded_result_of_its_step(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.store.forward.advance(hold, done="charge", result=CHARGED, calls=1, begin=None)
    await store.store.requests.undo(asked(task_id))
    hold = await store.claim(task_id)
    report = await store.store.undo.advance(hold, begin=undo("charge", original=True))
    assert report.grant is not None
    assert report.grant.original == CHARGED


@pytest.mark.demand("F2", "C10")
async def test_result_that_came_too_late_to_count_is_known_to_undo(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    late = [Completed(result={}, calls=1), Completed(result=CHARGED, calls=1)]
    for n, outcome in enumerate(late):
        answer = outcome.model_dump(mode="json")
        await store.store.steps.note_late(task_id, "charge", answer, actor=f"order/{task_id}/{n}")
    report = await store.store.undo.advance(hold, begin=undo("charge", original=True))
    assert report.grant is not None
    assert report.grant.original == CHARGED


@pytest.mark.demand("F2", "C11")
async def test_answer_by_callback_that_no_attempt_took_is_known_to_undo(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    inbox = InboxStore(store.database)
    await inbox.put("r-1", f"{task_id}:charge:0", Completed(result=CHARGED, calls=None))
    await inbox.put("r-2", f"{task_id}:charge:0", Completed(result={"charge_id": "another"}, calls=None))
    report = await store.store.undo.advance(hold, begin=undo("charge", original=True))
    assert report.grant is not None
    assert report.grant.original == CHARGED


@pytest.mark.demand("F4")
async def test_undo_of_an_unknown_outcome_is_granted_without_a_result(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    report = await store.store.undo.advance(hold, begin=undo("charge", original=True))
    assert report.grant is not None
    assert report.grant.original is None


async def test_result_is_not_sent_where_no_agent_wants_it(store: StoreBench, task_id: str) -> None:
    hold = await undoing(store, task_id)
    await store.store.steps.note_late(
        task_id, "charge", Completed(result=CHARGED, calls=1).model_dump(mode="json"), actor="a"
    )
    report = await store.store.undo.advance(hold, begin=undo("charge"))
    assert report.grant is not None
    assert report.grant.original is None


# --- what the Agent makes of it -------------------------------------------------------------------------------


class Charge(BaseModel):
    """So much."""

    amount: int


class Charged(BaseModel):
    """What a charge returns."""

    charge_id: str


class Till(Agent):
    """A service that refunds by the id that its charge returned, and can't be asked."""

    service = "till"

    @action
    async def charge(self, call: Call, request: Charge) -> Charged:
        """Charge."""
        return Charged.model_validate((await call.post("/charges", request)).body)

    @action
    async def refund(self, call: Call, charged: Charged | None) -> None:
        """Refund; not without the id."""
        if charged is not None:
            await call.post(f"/charges/{charged.charge_id}/refunds")


class AskedTill(Till):
    """The same, and it can be asked."""

    find = AskedByKey.find


class Refunding:
    """The service, which knows of some keys."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.known, self.refunded, self.asked = known, list[str](), list[str]()
        self.app = FastAPI()
        self.app.add_route("/operations/{key}", self.operation, methods=["GET"])
        self.app.add_route("/charges/{charge_id}/refunds", self.refund, methods=["POST"])

    async def operation(self, request: Request) -> JSONResponse:
        """What became of a key."""
        self.asked.append(key := request.path_params["key"])
        found = self.known.get(key)
        return JSONResponse(found or {"error": {"code": "unknown_key", "message": ""}}, 200 if found else 404)

    async def refund(self, request: Request) -> JSONResponse:
        """Refund a charge."""
        self.refunded.append(request.path_params["charge_id"])
        return JSONResponse({})


@pytest.fixture
async def refunding() -> AsyncIterator[tuple[Refunding, str]]:
    """The service and its address; it has made one charge, by an older key."""
    service = Refunding({"t:s:0": {"state": "done", "status": 201, "body": CHARGED}})
    async with served(service.app) as url:
        yield service, url


UNDO: dict[str, Any] = {"undo": True, "keys": ["t:s:0", "t:s:1"], "unknown": True}


@pytest.mark.demand("F2")
@pytest.mark.parametrize("agent", [Till, AskedTill])
async def test_undo_is_sent_with_the_result_and_nothing_is_asked(
    refunding: tuple[Refunding, str], agent: type[Agent]
) -> None:
    service, url = refunding
    assert await ask(agent, url, "refund", **UNDO, original={"charge_id": "ch-7"}) == Completed(result={}, calls=1)
    assert (service.refunded, service.asked) == (["ch-7"], [])


@pytest.mark.failure(123)
@pytest.mark.demand("F4", "C15")
async def test_undo_without_a_result_asks_by_every_key_first(refunding: tuple[Refunding, str]) -> None:
    service, url = refunding
    assert await ask(AskedTill, url, "refund", **UNDO) == Completed(result={}, calls=3)
    assert (service.asked, service.refunded) == (["t:s:1", "t:s:0"], ["ch-1"])


@pytest.mark.demand("F4", "F5", "C15")
@pytest.mark.parametrize("state", [None, "refused", "undone"])
async def test_undo_of_what_the_service_has_not_done_gets_none(
    refunding: tuple[Refunding, str], state: str | None
) -> None:
    service, url = refunding
    service.known = {"t:s:1": {"state": state, "status": 402, "body": {}}} if state else {}
    assert await ask(AskedTill, url, "refund", **UNDO) == Completed(result={}, calls=2)
    assert service.refunded == []


@pytest.mark.demand("F4")
async def test_undo_waits_for_a_step_that_is_still_being_done(refunding: tuple[Refunding, str]) -> None:
    service, url = refunding
    service.known = {"t:s:1": {"state": "done", "status": 202, "body": {}}}
    outcome = await ask(AskedTill, url, "refund", **UNDO, within_s=0.5)
    assert isinstance(outcome, GaveUp)
    assert "the step is done, or will be" in outcome.cause


@pytest.mark.demand("F4")
async def test_agent_that_can_not_ask_decides_an_undo_without_result(
    refunding: tuple[Refunding, str],
) -> None:
    service, url = refunding
    assert await ask(Till, url, "refund", **UNDO) == Completed(result={}, calls=0)
    assert (service.asked, service.refunded) == ([], [])


# --- what a definition may say --------------------------------------------------------------------------------


@pytest.mark.demand("F12")
@pytest.mark.parametrize(
    ("doing", "undoing_by", "said"),
    [
        ("till.charge", "till.refund", None),
        ("till.refund", "stock.cancel", "till.refund takes what a step returned: it can only undo"),
        ("stock.reserve", "till.refund", "till.refund takes what another step returns: a Charged"),
    ],
)
def test_undo_takes_only_what_its_own_step_returns(doing: str, undoing_by: str, said: str | None) -> None:
    known = catalogue() | {a.name: a for a in Till.actions()}
    found = misfits(definition(replace(step("a", undo=Undo(undoing_by)), action=doing)), known)
    found = [p.partition("step a: ")[2] for p in found if "not what its request returns" not in p]
    assert found == ([said] if said else [])
