"""The Agent of a hall, whose seats are held by key."""

from __future__ import annotations

from pydantic import BaseModel
from sas.activities.agent import action
from sas.activities.asked_by_key import AskedByKey
from sas.activities.call import Call


class Line(BaseModel):
    """So many seats of a row."""

    sku: str
    quantity: int


class Hold(BaseModel):
    """Seats to hold."""

    sku_lines: list[Line]


class Held(BaseModel):
    """The seats that are held."""

    reservation_id: str


class Hall(AskedByKey):
    """Seats."""

    service = "hall"

    @action
    async def hold(self, call: Call, request: Hold) -> Held:
        """Hold seats."""
        _, body = await call.post("/reservations", request)
        return Held.model_validate(body)

    @action
    async def give_back(self, call: Call) -> None:
        """Give them back."""
        await call.undo("/reservations/undo")
