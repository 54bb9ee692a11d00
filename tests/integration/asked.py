"""An Agent asked by itself, as an attempt asks it: for tests of what it sends, and of what it makes of the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from activities.agent import Agent
from activities.call_loop import Agents
from activities.clock import uptime
from domain.messages import AgentRequest, Outcome


async def ask(
    agent: type[Agent],
    url: str,
    action: str,
    *,
    access: Mapping[str, Any] | None = None,
    within_s: float = 5.0,
    **more: Any,
) -> Outcome:
    """What a request of an action comes to, with connections of its own."""
    async with Agents([agent], *reached(agent, url, access)) as agents:
        return await agents.carry_out(request_of(agent, action, **more), uptime() + within_s)


def reached(agent: type[Agent], url: str, access: Mapping[str, Any] | None) -> tuple[dict[str, str], Any]:
    """Address and credentials of one service, as settings have them."""
    secret = {name: SecretStr(str(value)) for name, value in (access or {}).items()}
    return {agent.service: url}, {agent.service: secret}


def request_of(agent: type[Agent], action: str, **more: Any) -> AgentRequest:
    """A request of the one step of task `t`, under the right to make three calls."""
    terms = {"task_id": "t", "step": "s", "keys": ["t:s:0"], "epoch": 3, "calls": 3, "run_id": "run", "body": {}}
    return AgentRequest.model_validate({**terms, "action": f"{agent.service}.{action}", **more})
