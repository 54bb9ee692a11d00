"""A card processor: forms, a bearer token, keys that are known for a day, refunds by the id of the charge."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from activities.agent import Agent, Found, action
from activities.authentication import Bearer
from activities.call import Call
from activities.meanings import Meaning


class Charge(BaseModel):
    """Charge a card. `amount_minor` is in the currency's minor unit."""

    amount_minor: int
    currency: str
    card: str


class Charged(BaseModel):
    """The charge that was made."""

    id: str


class Cards(Agent):
    """The processor: a 5xx that it has saved for a key it repeats for a day, and the search tells what it hides."""

    service = "cards"
    authentication = Bearer()
    fence_header = time_left_header = ""
    remembers = timedelta(hours=23)
    keeps_tombstones = False
    means = {409: Meaning.AT_WORK, "charge_already_refunded": Meaning.SUCCESS}

    @action
    async def charge(self, call: Call, request: Charge) -> Charged:
        """Charge, and note the key with it. Refused for good: `card_declined`."""
        form = {"amount": str(request.amount_minor), "currency": request.currency, "source": request.card}
        reply = await call.post("/v1/charges", data={**form, "metadata[key]": call.key})
        return Charged.model_validate(reply.body)

    @action
    async def refund(self, call: Call, charged: Charged | None) -> None:
        """Refund the charge, if there is one."""
        if charged is not None:
            await call.post("/v1/refunds", data={"charge": charged.id})

    async def find(self, call: Call, key: str) -> Found | None:
        """Search for the key that was noted."""
        reply = await call.get("/v1/charges/search", params={"query": f"metadata['key']:'{key}'"})
        return Found("done", 200, reply.body["data"][0]) if reply.body["data"] else None
