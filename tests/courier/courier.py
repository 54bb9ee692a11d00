"""A courier that keeps neither tombstones nor fences, and can't be asked by key."""

from __future__ import annotations

from activities.agent import Agent, action
from activities.agents.shipping import Book, Booked
from activities.call import Call


class Courier(Agent):
    """Parcels."""

    service = "courier"
    keeps_tombstones = False

    @action
    async def collect(self, call: Call, request: Book) -> Booked:
        """Order a collection."""
        reply = await call.post("/shipments", request)
        return Booked.model_validate(reply.body)

    @action
    async def cancel(self, call: Call) -> None:
        """Cancel it; a late order that comes after this is taken all the same."""
        await call.undo("/shipments/cancel")
