"""An outcome that is unknown is asked for by key, before anything is sent again (C15)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from activities.agent import Agent, action
from activities.agents import all_agents
from activities.agents.payments import Charge, Charged, Refund
from activities.call import Call
from activities.call_loop import Agents
from activities.clock import uptime
from domain.faults import KEY_FORGOTTEN
from domain.ids import idempotency_keys
from domain.messages import AgentRequest, Completed, Failed, GaveUp, Outcome
from testing.simulators import Simulators

CHARGE = {"amount_minor": 2500, "currency": "EUR", "card_token": "tok_visa"}
REFUND = {"action": "payments.refund", "body": {"amount_minor": 2500, "currency": "EUR"}, "undo": True}
DAY_S = 24 * 3600.0


class Till(Agent):
    """The payments service, by an Agent that can't ask it."""

    service = "payments"

    @action
    async def charge(self, call: Call, request: Charge) -> Charged:
        """Charge."""
        reply = await call.post("/charges", request)
        return Charged.model_validate(reply.body)


class Payments:
    """Asks the Agent of the payments service for a charge, or for its refund, as an attempt does."""

    def __init__(self, simulators: Simulators, task_id: str) -> None:
        self._simulators, self._task_id = simulators, task_id
        self._services = simulators.services

    async def refund(self, **more: Any) -> Outcome:
        """What came of the undo of the charge."""
        return await self.charge(**REFUND, **more)

    async def charge(self, *, agents: list[type[Agent]] | None = None, **more: Any) -> Outcome:
        """What came of it."""
        request = AgentRequest(
            **{
                "task_id": self._task_id,
                "step": "charge",
                "action": "payments.charge",
                "body": CHARGE,
                "keys": idempotency_keys(self._task_id, "charge", 0),
                "epoch": 1,
                "calls": 3,
                "run_id": "run",
                **more,
            }
        )
        async with Agents(agents or list(all_agents()), self._services) as known:
            return await known.carry_out(request, uptime() + 5)

    @property
    def sent(self) -> int:
        """Charges that the service has received."""
        return self._simulators.calls("payments", self._task_id)


@pytest.fixture
def payments(simulators: Simulators, task_id: str) -> Payments:
    """The payments service, for one task."""
    return Payments(simulators, task_id)


@pytest.mark.failure(26)
@pytest.mark.demand("C15")
async def test_lost_reply_is_asked_for_and_nothing_is_sent_again(payments: Payments, simulators: Simulators) -> None:
    simulators.fault("payments", "lost_reply", times=1)
    outcome = await payments.charge()
    assert isinstance(outcome, Completed)
    assert outcome.result["charge_id"].startswith("charge_")
    assert (outcome.calls, payments.sent) == (2, 1), "the question counts as a call"


@pytest.mark.failure(27)
@pytest.mark.demand("C15")
async def test_effect_behind_a_500_is_found_although_the_500_is_repeated(
    payments: Payments, simulators: Simulators
) -> None:
    simulators.fault("payments", "error", status=500, after_effect=True)
    outcome = await payments.charge()
    assert isinstance(outcome, Completed)
    assert payments.sent == 1


@pytest.mark.failure(26)
@pytest.mark.demand("C15", "B7")
async def test_call_of_an_earlier_attempt_is_asked_for_first(payments: Payments) -> None:
    assert isinstance(await payments.charge(), Completed)
    again = await payments.charge(unknown=True, epoch=2)
    assert isinstance(again, Completed)
    assert payments.sent == 1


@pytest.mark.demand("C15")
async def test_key_that_the_service_has_never_seen_is_sent(payments: Payments) -> None:
    outcome = await payments.charge(unknown=True)
    assert isinstance(outcome, Completed)
    assert (outcome.calls, payments.sent) == (2, 1)


@pytest.mark.demand("C15", "E3")
async def test_question_is_paid_for_out_of_the_allowance(payments: Payments) -> None:
    outcome = await payments.charge(unknown=True, calls=1)
    assert isinstance(outcome, GaveUp)
    assert "no call is left" in outcome.cause
    assert payments.sent == 0


@pytest.mark.demand("C15", "C5")
async def test_refusal_that_was_lost_is_found_and_is_certain(payments: Payments, simulators: Simulators) -> None:
    simulators.fault("payments", "lost_reply", times=1)
    declined = {**CHARGE, "card_token": "tok_declined"}
    outcome = await payments.charge(body=declined)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.unknown_before) == ("card_declined", False)
    assert payments.sent == 1


@pytest.mark.failure(31)
@pytest.mark.demand("C15")
async def test_key_that_the_service_no_longer_remembers_is_never_sent_again(payments: Payments) -> None:
    outcome = await payments.charge(unknown=True, key_age_s=DAY_S + 1)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.unknown_before) == (KEY_FORGOTTEN, True)
    assert "remembers keys for 1 day" in outcome.message
    assert "--no-effect charge --evidence TEXT" in outcome.message
    assert payments.sent == 0
    young = await payments.charge(unknown=True, key_age_s=DAY_S - 60)
    assert isinstance(young, Completed)


class Bank(Agent):
    """The payments service, if it found a charge by its key for a day only."""

    service = "payments"
    undoes_within = timedelta(days=1)

    @action
    async def refund(self, call: Call, request: Refund) -> None:
        """Refund."""
        await call.undo("/refunds", request)


@pytest.mark.failure(31)
@pytest.mark.demand("F5", "F9")
@pytest.mark.parametrize(("agents", "days"), [(None, 30), ([Bank], 1)], ids=["by default", "as its Agent says"])
async def test_undo_is_sent_only_while_the_service_undoes_by_key(
    payments: Payments, simulators: Simulators, task_id: str, agents: list[type[Agent]] | None, days: int
) -> None:
    """Whether its original is known to be done or not: "nothing to undo" would prove nothing."""
    assert isinstance(await payments.charge(), Completed)
    for unknown in (False, True):
        outcome = await payments.refund(agents=agents, unknown=unknown, key_age_s=days * DAY_S)
        assert isinstance(outcome, Failed)
        assert outcome.code == KEY_FORGOTTEN
        assert f"undoes by key for {timedelta(days=days)}, and the first call is older" in outcome.message
        assert f"`python starter.py repair {task_id} charge --done-by-hand " in outcome.message
    assert simulators.calls("payments", task_id, undo=True) == 0
    young = await payments.refund(agents=agents, key_age_s=days * DAY_S - 60)
    assert isinstance(young, Completed)
    assert simulators.live(task_id) == {}


async def test_service_that_can_not_be_asked_gets_the_same_key_again(
    payments: Payments, simulators: Simulators
) -> None:
    simulators.fault("payments", "lost_reply", times=1)
    outcome = await payments.charge(agents=[Till])
    assert isinstance(outcome, Completed)
    assert payments.sent == 2


@pytest.mark.demand("C15", "C5")
async def test_refusal_after_an_earlier_call_is_certain_once_asked_by_key(
    payments: Payments,
) -> None:
    declined = {**CHARGE, "card_token": "tok_declined"}
    asked = await payments.charge(body=declined, unknown=True)
    assert isinstance(asked, Failed)
    assert not asked.unknown_before
    unasked = await payments.charge(body=declined, unknown=True, agents=[Till])
    assert isinstance(unasked, Failed)
    assert unasked.unknown_before
