"""A cloud provider: no keys, but a PUT under an id of ours, and a machine that takes its time."""

from __future__ import annotations

from pydantic import BaseModel

from activities.agent import Agent, Found, action
from activities.authentication import ApiKey
from activities.call import Call
from activities.meanings import Meaning
from domain.faults import PermanentFault, StillAtWork
from domain.messages import Json


class Machine(BaseModel):
    """What is to be made."""

    size: str


class Running(BaseModel):
    """The machine, once it runs."""

    address: str


def running(body: Json) -> Running:
    """The machine; while it is being made, the calls that are left are spread over the time that is left."""
    if body["state"] == "failed":
        raise PermanentFault("failed", body["reason"])
    if body["state"] != "running":
        raise StillAtWork("it is being made")
    return Running.model_validate(body)


class Machines(Agent):
    """The provider: a PUT that is repeated changes nothing, so it serves as the question too."""

    service = "machines"
    authentication = ApiKey("X-Auth-Token")
    key_header = fence_header = time_left_header = ""
    keeps_tombstones = False

    @action
    async def create(self, call: Call, request: Machine) -> Running:
        """Make it, and ask until it runs."""
        return running((await call.put(path_of(call.key), request)).body)

    @action
    async def delete(self, call: Call) -> None:
        """Delete it, and ask until it is gone."""
        for key in call.keys:
            await call.delete(path_of(key), means={404: Meaning.SUCCESS, 202: Meaning.AT_WORK})

    async def find(self, call: Call, key: str) -> Found | None:
        """Look at it."""
        reply = await call.ask(path_of(key), unknown="not_found")
        return None if reply is None else Found("done", 200, running(reply.body).model_dump())


def path_of(key: str) -> str:
    """Where a machine is: its name is made of the key."""
    return f"/machines/{key.replace(':', '-')}"
