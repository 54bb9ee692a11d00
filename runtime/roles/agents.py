"""The role `agents`: activities that call remote services, on the task queues where definitions place them."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.worker import Worker

from activities.call_loop import Agents
from activities.queued import agent_activity
from activities.stalls import StallDetector
from definitions import registry
from domain.faults import UsageError
from runtime.roles.workers import check_access
from runtime.settings import Settings
from runtime.wiring import process_name


def agent_workers(
    settings: Settings, client: Client, agents: Agents, services: set[str], stalls: StallDetector
) -> dict[str, Worker]:
    """One worker a task queue on which some definition places an Agent of these services."""
    placed: dict[str, set[str]] = {}
    for definition in registry():
        for step in definition.steps:
            service = agents.actions[step.action].service
            if step.queue and service in services:
                placed.setdefault(step.queue, set()).add(service)
                if step.answers_later and not settings.callback_secret.get_secret_value():
                    raise UsageError(f"step {step.name} of {definition.name} answers later: set SAS_CALLBACK_SECRET")
    check_access(agents, {s for here in placed.values() for s in here})
    return {
        f"Agents on task queue {queue}": Worker(
            client,
            task_queue=queue,
            activities=[agent_activity(agents, here, stalls)],
            identity=process_name("agents"),
            graceful_shutdown_timeout=settings.shutdown_grace,
        )
        for queue, here in sorted(placed.items())
    }
