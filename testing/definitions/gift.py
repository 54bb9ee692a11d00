"""A gift: reserve it, then tell the person. Impatient, and left to a person when it does not work out."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from activities.agents import mail, stock
from domain.definition import Backoff, Definition, ExtendedWait, Results, Step, Undo


class Gift(BaseModel):
    """The business record."""

    model_config = ConfigDict(extra="forbid")

    sku: str
    to: str


def reserve(gift: Gift, _: Results) -> stock.Reserve:
    """One piece."""
    return stock.Reserve(sku_lines=[stock.SkuLine(sku=gift.sku, quantity=1)])


def tell(gift: Gift, results: Results) -> mail.Message:
    """The message, with the reservation."""
    return mail.Message(to=gift.to, template="gift", data=results["reserve"])


GIFT = Definition(
    name="gift",
    version=3,
    record=Gift,
    threshold=1,
    backoff=Backoff(first=timedelta(milliseconds=100)),
    extended_wait=ExtendedWait(timedelta(milliseconds=300)),
    on_spent="error",
    steps=(
        Step(
            name="reserve",
            action="stock.reserve",
            request=reserve,
            undo=Undo("stock.cancel"),
            within=timedelta(seconds=3),
            calls=2,
            budget=20,
        ),
        Step(name="tell", action="mail.send", request=tell, no_effect=True, within=timedelta(seconds=3)),
    ),
)
