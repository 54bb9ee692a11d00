"""Payments: charges and their refunds. The card `tok_declined` is declined."""

from pydantic import BaseModel, Field

from devstack.simulators.messages import Answer, Create, Service, Undo, refusal, stable_id, success


class ChargeRequest(BaseModel):
    """An amount in minor units of a currency, and the card that pays it."""

    amount_minor: int = Field(gt=0, le=10**12)
    currency: str = Field(pattern="^[A-Z]{3}$")
    card_token: str = Field(min_length=1)


def charge(request: ChargeRequest, key: str) -> Answer:
    """Charges the card."""
    if request.card_token == "tok_declined":  # noqa: S105 - a made-up card, not a secret
        return refusal(402, "card_declined", "the card was declined")
    return success(201, {"charge_id": stable_id("charge", key)})


SERVICE = Service(
    "payments",
    (
        Create("/payments/charges", ChargeRequest, charge),
        Undo("/payments/refunds", creates="/payments/charges"),
    ),
)
