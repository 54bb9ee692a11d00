"""A purchase: one charge at the card processor, which keeps no tombstones."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from domain.definition import Backoff, Definition, Results, Step, Undo
from examples.agents.cards import Charge


class Purchase(BaseModel):
    """The business record. `amount_minor` is in cents."""

    amount_minor: int
    card: str


def charge(purchase: Purchase, _: Results) -> Charge:
    """The whole sum."""
    return Charge(amount_minor=purchase.amount_minor, currency="eur", card=purchase.card)


PURCHASE = Definition(
    name="purchase",
    version=1,
    record=Purchase,
    backoff=Backoff(first=timedelta(milliseconds=100)),
    steps=(
        Step(
            name="charge",
            action="cards.charge",
            request=charge,
            undo=Undo("cards.refund", budget=60, quarantine=timedelta(seconds=1)),
            within=timedelta(seconds=3),
        ),
    ),
)
