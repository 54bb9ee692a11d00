"""The roles of a worker process: `scheduler`, `agents`, `supervisor`, `callbacks`; one process may have several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import StrEnum
from pathlib import Path

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.agents import all_agents
from activities.call_loop import Agents
from activities.draining import Draining
from activities.stalls import StallDetector
from runtime.background import in_background
from runtime.callbacks.addresses import callback_addresses
from runtime.roles.agents import agent_workers
from runtime.roles.callbacks import callbacks_served
from runtime.roles.scheduler import scheduler_at_work
from runtime.roles.supervisor import supervisor_worker
from runtime.roles.workers import at_work
from runtime.settings import Settings
from runtime.signals import StopSignals
from runtime.temporal import check_namespace, connect
from runtime.wiring import sweep_settings
from supervisor.schedule import ensure_schedule

log = structlog.get_logger(__name__)

_HEALTH_S = 5.0


class Role(StrEnum):
    """What a worker process does."""

    SCHEDULER = "scheduler"
    AGENTS = "agents"
    SUPERVISOR = "supervisor"
    CALLBACKS = "callbacks"


async def run_roles(settings: Settings, roles: set[Role], services: set[str]) -> None:
    """Run these roles until SIGTERM or SIGINT, then finish what is running within the grace period.

    Args:
        settings: Each role reads only what it needs: `agents` no database, `supervisor` only its own.
        roles: What to do. services: whose Agents the `agents` role runs.
    """
    draining = Draining(settings.shutdown_grace)
    signals = StopSignals(draining, settings.shutdown_grace)
    try:
        client = await connect()
        await check_namespace(client)
        async with running(settings, client, roles, services, draining=draining):
            signals.ready()
            log.info("worker ready", roles=sorted(roles), services=sorted(services))
            await _until(draining.begun, settings.health_file)
            log.info("worker draining")
    except asyncio.CancelledError:  # told to stop before it was ready
        if not draining.begun.is_set():
            raise
    log.info("worker stopped")


async def _until(stop: asyncio.Event, health_file: Path | None) -> None:
    """Wait for `stop`, touching the health file meanwhile: an event loop that hangs stops touching it."""
    while not stop.is_set():
        if health_file is not None:
            health_file.touch()  # noqa: ASYNC240 (one system call on a local file)
        with suppress(TimeoutError):
            async with asyncio.timeout(_HEALTH_S):
                await stop.wait()
    if health_file is not None:
        health_file.unlink(missing_ok=True)  # noqa: ASYNC240 (likewise)


@asynccontextmanager
async def running(
    settings: Settings,
    client: Client,
    roles: set[Role],
    services: set[str],
    *,
    draining: Draining | None = None,
) -> AsyncIterator[None]:
    """The roles at work for as long as the context lasts: a worker in a process of its own, or in a test.

    It stops them in this order: the callbacks; the workers that call and sweep, all at once; the Scheduler, which has
    then written what became of the calls.
    """
    draining = draining or Draining(settings.shutdown_grace)
    async with AsyncExitStack() as stack:
        try:
            answers_later = bool(settings.callback_secret.get_secret_value())
            agents = await stack.enter_async_context(
                Agents(
                    list(all_agents()),
                    settings.services,
                    settings.access,
                    callback_url=callback_addresses(settings).address if answers_later else None,
                    draining=draining,
                )
            )
            workers: dict[str, Worker] = {}
            if Role.SUPERVISOR in roles:
                workers["Supervisor"] = await stack.enter_async_context(supervisor_worker(settings, client))
            if Role.SCHEDULER in roles:
                await stack.enter_async_context(scheduler_at_work(settings, client, agents, draining))
            if Role.AGENTS in roles:
                stalls = StallDetector()
                await stack.enter_async_context(in_background(draining, stalls.run()))
                workers |= agent_workers(settings, client, agents, services, stalls)
            await stack.enter_async_context(at_work(workers, draining))
            if Role.SUPERVISOR in roles:
                await ensure_schedule(client, sweep_settings(settings))
            if Role.CALLBACKS in roles:
                await stack.enter_async_context(callbacks_served(settings, client, agents, draining))
            yield
        finally:  # of what is at work already, also where the start fails
            draining.begin()
