"""The Agent of the stock service: reserves the lines of an order."""

from __future__ import annotations

from pydantic import BaseModel

from activities.agent import action
from activities.asked_by_key import AskedByKey
from activities.call import Call


class SkuLine(BaseModel):
    """So many pieces of one article."""

    sku: str
    quantity: int


class Reserve(BaseModel):
    """Reserve all lines, or none."""

    sku_lines: list[SkuLine]


class Reserved(BaseModel):
    """The reservation that was made."""

    reservation_id: str


class Stock(AskedByKey):
    """Stock reservations."""

    service = "stock"

    @action
    async def reserve(self, call: Call, request: Reserve) -> Reserved:
        """Reserve stock. Refused for good: `out_of_stock`."""
        reply = await call.post("/reservations", request)
        return Reserved.model_validate(reply.body)

    @action
    async def cancel(self, call: Call) -> None:
        """Give the reservation back; nothing to give back leaves a tombstone."""
        await call.undo("/reservations/undo")
