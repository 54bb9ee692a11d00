"""The Agent of the payments service: charges a card, and refunds."""

from __future__ import annotations

from pydantic import BaseModel, Field

from activities.agent import action
from activities.asked_by_key import AskedByKey
from activities.call import Call


class Charge(BaseModel):
    """Charge a card. `amount_minor` is in the currency's minor unit (cents)."""

    amount_minor: int = Field(ge=0)
    currency: str
    card_token: str


class Charged(BaseModel):
    """The charge that was made."""

    charge_id: str


class Refund(BaseModel):
    """Refund whatever the original charged; its keys say which."""

    amount_minor: int = Field(ge=0)
    currency: str


class Payments(AskedByKey):
    """Card payments."""

    service = "payments"

    @action
    async def charge(self, call: Call, request: Charge) -> Charged:
        """Charge the card once, whatever is repeated. Refused for good: `card_declined`."""
        reply = await call.post("/charges", request)
        return Charged.model_validate(reply.body)

    @action
    async def refund(self, call: Call, request: Refund) -> None:
        """Refund; a charge that arrives after its refund is refused by the tombstone."""
        await call.undo("/refunds", request)
