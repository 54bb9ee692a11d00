"""Mail: messages. What is sent can't be taken back, so there is no undo."""

from typing import Any

from pydantic import BaseModel, Field

from devstack.simulators.messages import Answer, Create, Service, stable_id, success


class MessageRequest(BaseModel):
    """A recipient, a template and what goes into it."""

    to: str = Field(min_length=1)
    template: str = Field(min_length=1)
    data: dict[str, Any] = Field(default_factory=dict)


def send(request: MessageRequest, key: str) -> Answer:
    """Accepts the message."""
    del request
    return success(202, {"message_id": stable_id("message", key)})


SERVICE = Service("mail", (Create("/mail/messages", MessageRequest, send),))
