"""The Agents of `examples/agents` against stand-ins as awkward as real services, over HTTPS of a private authority."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from activities.agent import Agent
from domain.faults import KEY_FORGOTTEN
from domain.messages import Completed, Failed, GaveUp, Outcome, StoodDown
from examples.agents.cards import Cards
from examples.agents.freight import Freight
from examples.agents.machines import Machines
from testing.certificates import Authority, Certificate
from testing.served import served
from tests.integration.asked import ask
from tests.shapes import card_processor, cloud_provider, freight_partner
from tests.shapes.card_processor import CardProcessor
from tests.shapes.cloud_provider import CloudProvider
from tests.shapes.freight_partner import FreightPartner

CHARGE = {"amount_minor": 2500, "currency": "eur", "card": "tok_visa"}
HOUR_S = 3600.0


@dataclass
class Reached:
    """A stand-in that is served, as its Agent reaches it."""

    agent: type[Agent]
    url: str
    access: dict[str, Any]

    async def ask(self, action: str, **more: Any) -> Outcome:
        """What an action comes to."""
        return await ask(self.agent, self.url, action, **{"access": self.access, **more})

    async def undo(self, action: str, **more: Any) -> Outcome:
        """What an undo comes to."""
        return await self.ask(action, undo=True, **{"epoch": 4, **more})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The private authority of all three."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    """The certificate of each service."""
    return authority.issue("service")


# --- a card processor -----------------------------------------------------------------------------------------


@pytest.fixture
async def cards(authority: Authority, certificate: Certificate) -> AsyncIterator[tuple[CardProcessor, Reached]]:
    """The card processor."""
    processor = CardProcessor()
    async with served(processor.app, certificate) as url:
        access = {"token": card_processor.TOKEN, "ca_file": authority.certificate}
        yield processor, Reached(Cards, url, access)


@pytest.mark.demand("C2", "C13")
async def test_charge_that_is_repeated_is_made_once(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    first = await reached.ask("charge", body=CHARGE)
    assert first == Completed(result={"id": "ch_1"}, calls=1)
    assert await reached.ask("charge", body=CHARGE, epoch=4) == first
    assert processor.standing == ["ch_1"]


@pytest.mark.failure(27)
@pytest.mark.demand("C15")
async def test_charge_behind_a_saved_500_is_found_by_its_metadata(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    processor.saved_500 = 1
    assert await reached.ask("charge", body=CHARGE) == Completed(result={"id": "ch_1"}, calls=2)
    assert len(processor.charges) == 1


@pytest.mark.demand("C5")
async def test_declined_card_is_refused_for_good(cards: tuple[CardProcessor, Reached]) -> None:
    _, reached = cards
    outcome = await reached.ask("charge", body=CHARGE | {"card": "tok_declined"})
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.unknown_before) == ("card_declined", False)


@pytest.mark.demand("C2")
async def test_twin_of_a_charge_is_waited_for(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    processor.delay_s = 0.3
    outcomes = await asyncio.gather(*(reached.ask("charge", body=CHARGE) for _ in range(2)))
    assert all(isinstance(o, Completed) and o.result == {"id": "ch_1"} for o in outcomes)
    assert len(processor.charges) == 1


@pytest.mark.demand("F2", "F5")
async def test_refund_is_by_the_charges_id_once_under_any_key(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    charged = await reached.ask("charge", body=CHARGE)
    assert isinstance(charged, Completed)
    for generation in (0, 0, 1):
        undone = await reached.undo("refund", original=charged.result, generation=generation)
        assert undone == Completed(result={}, calls=1)
    assert (processor.standing, processor.refunds) == ([], ["ch_1"])


@pytest.mark.failure(26)
@pytest.mark.demand("F4", "C15")
async def test_charge_whose_reply_was_lost_is_searched_for_and_refunded(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    processor.lost = 1
    assert isinstance(await reached.ask("charge", body=CHARGE, calls=1), GaveUp)
    assert await reached.undo("refund", unknown=True) == Completed(result={}, calls=2)
    assert processor.standing == []


@pytest.mark.demand("F5")
async def test_refund_of_a_charge_that_was_never_made_sends_nothing(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    assert await reached.undo("refund", unknown=True) == Completed(result={}, calls=1)
    assert processor.refunds == []


@pytest.mark.failure(31)
@pytest.mark.demand("C15")
async def test_charge_is_not_sent_again_once_its_key_may_be_forgotten(cards: tuple[CardProcessor, Reached]) -> None:
    processor, reached = cards
    processor.forget_keys()
    outcome = await reached.ask("charge", body=CHARGE, unknown=True, key_age_s=24 * HOUR_S)
    assert isinstance(outcome, Failed)
    assert (outcome.code, processor.charges) == (KEY_FORGOTTEN, {})


# --- a cloud provider -----------------------------------------------------------------------------------------


@pytest.fixture
async def cloud(authority: Authority, certificate: Certificate) -> AsyncIterator[tuple[CloudProvider, Reached]]:
    """The cloud provider."""
    provider = CloudProvider()
    async with served(provider.app, certificate) as url:
        access = {"api_key": cloud_provider.TOKEN, "ca_file": authority.certificate}
        yield provider, Reached(Machines, url, access)


@pytest.mark.demand("C2", "C13")
async def test_machine_is_made_once_and_asked_for_until_it_runs(cloud: tuple[CloudProvider, Reached]) -> None:
    provider, reached = cloud
    outcome = await reached.ask("create", body={"size": "m"}, calls=5, within_s=2.0)
    assert isinstance(outcome, Completed)
    assert (outcome.result, provider.made) == ({"address": "::1"}, 1)
    assert list(provider.machines) == ["t-s-0"]


@pytest.mark.demand("C5")
async def test_machine_that_fails_on_the_way_is_refused_for_good(cloud: tuple[CloudProvider, Reached]) -> None:
    provider, reached = cloud
    provider.fails = True
    outcome = await reached.ask("create", body={"size": "m"}, calls=5, within_s=2.0)
    assert isinstance(outcome, Failed)
    assert outcome.message == "no capacity"


@pytest.mark.demand("F5", "F1")
async def test_machine_is_deleted_until_it_is_gone(cloud: tuple[CloudProvider, Reached]) -> None:
    provider, reached = cloud
    await reached.ask("create", body={"size": "m"}, calls=5, within_s=2.0)
    for _ in range(2):
        assert isinstance(await reached.undo("delete", calls=5, within_s=6.0), Completed)
        assert provider.machines == {}


@pytest.mark.demand("C5", "H5")
async def test_provider_that_does_not_know_us_costs_no_call(cloud: tuple[CloudProvider, Reached]) -> None:
    provider, reached = cloud
    outcome = await reached.ask("create", body={"size": "m"}, access=reached.access | {"api_key": "another"})
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.lacking, provider.made) == (0, "service machines", 0)


# --- a partner ------------------------------------------------------------------------------------------------


@pytest.fixture
async def freight(authority: Authority, certificate: Certificate) -> AsyncIterator[tuple[FreightPartner, Reached]]:
    """The partner, which wants to see our certificate."""
    partner, ours = FreightPartner(), authority.issue("ours")
    async with served(partner.app, certificate, clients_of=authority.certificate) as url:
        access = {
            "token_url": f"{url}/token",
            "client_id": freight_partner.CLIENT,
            "client_secret": freight_partner.SECRET,
            "ca_file": authority.certificate,
            "certificate_file": ours.certificate,
            "certificate_key_file": ours.key,
        }
        yield partner, Reached(Freight, url, access)


@pytest.mark.demand("C2", "C13", "F2")
async def test_booking_is_made_once_and_cancelled_by_its_number(freight: tuple[FreightPartner, Reached]) -> None:
    partner, reached = freight
    booked = await reached.ask("book", body={"parcels": 2})
    assert booked == Completed(result={"number": "B/1"}, calls=1)
    assert await reached.ask("book", body={"parcels": 2}, epoch=4) == booked
    for generation in (0, 1):
        assert isinstance(await reached.undo("cancel", original={"number": "B/1"}, generation=generation), Completed)
    assert (partner.standing, len(partner.bookings)) == ([], 1)


@pytest.mark.demand("C15", "F4")
async def test_booking_whose_reply_was_lost_is_found_by_our_reference(freight: tuple[FreightPartner, Reached]) -> None:
    partner, reached = freight
    partner.lost = 1
    assert await reached.ask("book", body={"parcels": 2}) == Completed(result={"number": "B/1"}, calls=2)
    partner.lost = 1
    assert isinstance(await reached.ask("book", body={"parcels": 2}, keys=["t:s:1"], calls=1), GaveUp)
    assert await reached.undo("cancel", keys=["t:s:0", "t:s:1"], unknown=True) == Completed(result={}, calls=2)
    assert partner.standing == ["B/1"]


@pytest.mark.demand("C5", "E1")
async def test_rate_limit_is_waited_for_within_the_time_left(freight: tuple[FreightPartner, Reached]) -> None:
    partner, reached = freight
    partner.allowed = 0
    assert await reached.ask("book", body={"parcels": 2}) == Completed(result={"number": "B/1"}, calls=2)
    partner.allowed = 0
    outcome = await reached.ask("book", body={"parcels": 2}, keys=["t:s:1"], within_s=0.8)
    assert isinstance(outcome, GaveUp)
    assert (outcome.retry_after_s, outcome.unknown, partner.limited) == (1.0, False, 2)


@pytest.mark.demand("C5")
async def test_problem_of_the_partner_is_told_in_its_words(freight: tuple[FreightPartner, Reached]) -> None:
    _, reached = freight
    outcome = await reached.ask("book", body={"parcels": 200})
    assert outcome == Failed(code="too-large", message="422 too-large: 100 parcels at most", unknown_before=False)
