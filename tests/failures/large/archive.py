"""An archive: it keeps pages, and answers each with a long receipt."""

from __future__ import annotations

from pydantic import BaseModel

from activities.agent import Agent, action
from activities.call import Call


class Page(BaseModel):
    """What is kept. `seen`: characters of the receipts before it."""

    text: str
    seen: int


class Receipt(BaseModel):
    """A long one."""

    text: str


class Removal(BaseModel):
    """Of a page, told again."""

    text: str


class Archive(Agent):
    """Pages."""

    service = "archive"

    @action
    async def keep(self, call: Call, request: Page) -> Receipt:
        """Keep a page."""
        reply = await call.post("/pages", request)
        return Receipt.model_validate(reply.body)

    @action
    async def remove(self, call: Call, request: Removal) -> None:
        """Remove it."""
        await call.undo("/pages/remove", request)
