"""Agents of one's own, made to call stand-ins: what they take and give stays theirs, how they send it becomes ours.

So a rehearsal is of a definition, not of its Agents; these are tried against a service by `activities.trial`.
"""

from __future__ import annotations

import os
from typing import Any

from pydantic import BaseModel

from activities.agent import Action, Agent
from activities.agents import all_agents, catalogue
from activities.asked_by_key import AskedByKey
from activities.call import Call
from chaos.rehearsal.examples import example
from definitions import registry
from domain.definition import Definition
from domain.messages import Json

VARIABLE = "REHEARSE"
"""Names the definition, in the environment of a process."""

_HOW_IT_SENDS = (
    *("over_http", "authentication", "needs", "headers", "means", "error_in"),
    *("key_header", "fence_header", "time_left_header"),
)


class _Work(BaseModel):
    request: Json
    answer: Json


def play_agents() -> None:
    """In this process the Agents of the definition that is rehearsed, if one is, call stand-ins."""
    if not (name := os.environ.get(VARIABLE)):
        return
    definition = registry().newest(name)
    assert definition is not None, name
    services = {service for step in definition.steps for service in step.services}
    for agent in all_agents():
        if agent.service in services:
            _play(agent, definition)


def _play(agent: type[Agent], definition: Definition) -> None:
    for attribute in _HOW_IT_SENDS:
        setattr(agent, attribute, getattr(Agent, attribute))
    if agent.can_ask():
        setattr(agent, "find", AskedByKey.find)  # noqa: B010 (an assignment has other types)
    for action in catalogue().values():
        if action.service == agent.service:
            setattr(agent, action.method, _method(action, definition))


def _method(action: Action, definition: Definition) -> Any:
    """A method of the same types, which does at a stand-in what a step asks for, or undoes it."""

    async def method(self: Agent, call: Call, *taken: BaseModel | None) -> BaseModel | None:
        done = definition.step(call.step).action.partition(".")[2]
        if call.key not in call.keys:  # an undo has a key of its own
            await call.undo(f"/{done}/undo")
            return None
        request = taken[0].model_dump(mode="json") if taken and taken[0] else {}
        reply = await call.post(f"/{done}", _Work(request=request, answer=answer))
        return action.result.model_validate(reply.body) if action.result else None

    answer = example(action.result) if action.result else {}
    hints: dict[str, Any] = {"call": Call}
    if action.request:
        hints["request"] = action.request
    if action.original:
        hints["original"] = action.original | None
    method.__annotations__ = hints | {"return": action.result or type(None)}
    method.is_action = True  # type: ignore[attr-defined]  # the mark that `Agent.actions` looks for
    return method
