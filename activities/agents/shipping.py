"""The Agent of the shipping service: books and cancels shipments."""

from __future__ import annotations

from pydantic import BaseModel

from activities.agent import action
from activities.asked_by_key import AskedByKey
from activities.call import Call


class ShippingAddress(BaseModel):
    """Where to."""

    name: str
    line1: str
    city: str
    postcode: str
    country: str


class Book(BaseModel):
    """Book a shipment of so many parcels."""

    address: ShippingAddress
    parcels: int


class Booked(BaseModel):
    """The shipment that was booked."""

    shipment_id: str
    tracking: str


class Shipping(AskedByKey):
    """Shipments."""

    service = "shipping"

    @action
    async def book(self, call: Call, request: Book) -> Booked:
        """Book a shipment. Refused for good: `unknown_address`."""
        reply = await call.post("/shipments", request)
        return Booked.model_validate(reply.body)

    @action
    async def cancel(self, call: Call) -> None:
        """Cancel the shipment."""
        await call.undo("/shipments/cancel")
