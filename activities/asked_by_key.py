"""Agents of services that say at `GET /operations/{key}` what became of a key; 404 `unknown_key`: never seen."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel

from activities.agent import Agent, Found
from activities.call import Call
from domain.messages import Json

_STATES: dict[str, Literal["done", "refused", "undone"]] = {
    "done": "done",
    "refused": "refused",
    "undone": "undone",
    "tombstone": "undone",
}


class _Operation(BaseModel):
    state: str
    status: int | None = None
    body: Json | None = None


class AskedByKey(Agent):
    """Base of Agents whose service can be asked by key."""

    async def find(self, call: Call, key: str) -> Found | None:
        """What became of the key. A state that is not known is an error, which leaves the outcome unknown."""
        answer = await call.ask(f"/operations/{quote(key, safe='')}", unknown="unknown_key")
        if answer is None:
            return None
        found = _Operation.model_validate(answer.body)
        return Found(state=_STATES[found.state], status=found.status or 200, body=found.body or {})
