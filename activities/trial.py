"""One step of a definition, tried against a service or a stand-in for one: for the tests of one's own definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from activities.agents import all_agents
from activities.call_loop import Agents
from activities.clock import uptime
from domain.definition import Definition, Step
from domain.ids import idempotency_key
from domain.messages import AgentRequest, Json, Outcome


async def try_step(
    definition: Definition,
    name: str,
    record: Any,
    results: Mapping[str, Json] | None = None,
    *,
    url: str = "",
    access: Mapping[str, SecretStr] | None = None,
    undo: bool = False,
) -> Outcome:
    """Do one step, or undo it, as a worker would do it in a first attempt; nothing is recorded.

    Args:
        definition: Whose step. name: Of the step.
        record: The business record, as the definition's model.
        results: Of earlier steps by name; for an undo, of the step itself.
        url: Base address of the service, if it has one. access: Credentials by name. undo: Whether the step is undone.

    Returns:
        What came of it: `Completed`, with what the service answered as `result`, or why not.
    """
    step = definition.step(name)
    request = AgentRequest(
        task_id="trial",
        step=name,
        keys=[idempotency_key("trial", name, 0)],
        epoch=1,
        run_id="trial",
        **(_undo(step, record, results or {}) if undo else _work(step, record, results or {})),
    )
    async with Agents(list(all_agents()), {request.service: url}, {request.service: access or {}}) as agents:
        return await agents.carry_out(request, uptime() + step.within.total_seconds())


def _work(step: Step, record: Any, results: Mapping[str, Json]) -> dict[str, Any]:
    body = step.request(record, results).model_dump(mode="json")
    return {"action": step.action, "body": body, "calls": step.calls}


def _undo(step: Step, record: Any, results: Mapping[str, Json]) -> dict[str, Any]:
    if (undo := step.undo) is None:
        raise ValueError(f"step {step.name} has no undo")
    body = undo.request(record).model_dump(mode="json") if undo.request else {}
    return {"action": undo.action, "body": body, "calls": undo.calls, "undo": True, "original": results.get(step.name)}
