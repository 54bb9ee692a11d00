"""The Agent of the mail service: sends messages, which can't be taken back."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from activities.agent import action
from activities.asked_by_key import AskedByKey
from activities.call import Call


class Message(BaseModel):
    """A message from a template."""

    to: str
    template: str
    data: dict[str, Any]


class Sent(BaseModel):
    """The message that was taken for delivery."""

    message_id: str


class Mail(AskedByKey):
    """Messages to people."""

    service = "mail"

    @action
    async def send(self, call: Call, request: Message) -> Sent:
        """Send a message once, whatever is repeated."""
        reply = await call.post("/messages", request)
        return Sent.model_validate(reply.body)
