"""The roles of a worker process: `scheduler`, `agents`, `supervisor`, `callbacks`; one process may have several."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx
import structlog
import uvicorn
from pydantic import SecretStr
from temporalio.client import Client
from temporalio.worker import Worker

from activities.agent import Agents
from activities.agents import all_agents
from activities.bookkeeping import Bookkeeping
from activities.draining import Draining
from activities.http import new_client
from activities.queued import agent_activity
from activities.reservations import Reservations
from activities.stalls import StallDetector
from definitions import registry
from domain.definition import worst_case
from domain.faults import Unreachable, UsageError
from domain.ids import TASK_QUEUE
from domain.text import place
from runtime.background import TIDY, SupervisionWatch, publish_definitions, repeat
from runtime.callback_guard import GuardedProtocol
from runtime.callbacks import CallbackAddresses, Callbacks
from runtime.deployment import deployment_of
from runtime.dispatcher import Dispatcher
from runtime.settings import LEAST_SECRET, Settings, address
from runtime.signals import StopSignals
from runtime.temporal import check_namespace, connect, queue_of
from runtime.wiring import Stores, open_state_store, open_stores, process_name, sweep_terms
from store.admission import ALIVE, Intake
from store.database import Database
from store.housekeeping import Housekeeper
from store.inbox import InboxStore
from store.schema import check_schema
from store.state_store import StateStore
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities
from supervisor.schedule import QUEUE as SUPERVISOR_QUEUE
from supervisor.schedule import ensure_schedule
from supervisor.sweep import Supervise
from workflows.compensation_request import CompensationRequest
from workflows.scheduler import Scheduler

log = structlog.get_logger(__name__)

_HEALTH_S = 5.0
_LOOK_S = 0.05
_CALLBACKS_END_S = 1


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
            try:
                await _until(draining.begun, settings.health_file)
            finally:
                signals.limit()
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
        http = await stack.enter_async_context(new_client())
        agents = Agents(
            list(all_agents()),
            settings.services,
            http,
            callback_url=callback_addresses(settings).address if _is_given(settings.callback_secret) else None,
            draining=draining,
        )
        workers: dict[str, Worker] = {}
        if Role.SUPERVISOR in roles:
            workers["Supervisor"] = await _supervisor(stack, settings, client)
        if Role.SCHEDULER in roles:
            stores = await stack.enter_async_context(open_stores(settings, orders_may_be_away=True))
            await _scheduler(stack, settings, client, stores, agents, draining)
        if Role.AGENTS in roles:
            stalls = StallDetector()
            await _background(stack, draining, stalls.run())
            workers |= _agent_workers(settings, client, agents, services, stalls)
        await stack.enter_async_context(_at_work(workers, draining))
        if Role.SUPERVISOR in roles:
            await ensure_schedule(client, sweep_terms(settings))
        if Role.CALLBACKS in roles:
            store = await stack.enter_async_context(open_state_store(settings, size=2))
            await _callbacks(stack, settings, client, store, agents, draining)
        try:
            yield
        finally:
            draining.begin()


@asynccontextmanager
async def _at_work(workers: Mapping[str, Worker], draining: Draining) -> AsyncIterator[None]:
    """Workers that start together and stop together; each is named until it has stopped."""

    async def stop(name: str, worker: Worker) -> None:
        await worker.shutdown()
        draining.left.remove(name)

    async with AsyncExitStack() as stack:
        for name, worker in workers.items():
            await stack.enter_async_context(worker)
            draining.left.append(name)
        try:
            yield
        finally:
            await asyncio.gather(*(stop(name, worker) for name, worker in workers.items()))


async def _scheduler(
    stack: AsyncExitStack,
    settings: Settings,
    client: Client,
    stores: Stores,
    agents: Agents,
    draining: Draining,
) -> None:
    inline = {service for d in registry() for s in d.steps if s.queue is None for service in s.services}
    _need_addresses(agents, inline)
    name = process_name("scheduler")
    stack.push_async_callback(_gone, stores.intake, name)
    await publish_definitions(stores.intake, stores.registry, name)
    for definition in stores.registry:
        worst = {s.name: asdict(worst_case(definition, s)) for s in definition.steps}
        log.info("worst case", definition=definition.name, version=definition.version, steps=worst)
    inbox = InboxStore(stores.store.database)
    bookkeeping = Bookkeeping(stores.store, inbox, stores.services, Reservations(), agents)
    stack.push_async_callback(bookkeeping.close)
    activities: list[Callable[..., Any]] = [
        bookkeeping.perform,
        bookkeeping.record,
        bookkeeping.results,
        bookkeeping.find_answer,
        bookkeeping.finish_undo,
        bookkeeping.release,
        bookkeeping.request_undo,
    ]
    queues = [TASK_QUEUE, *(queue_of(d.name, d.version) for d in stores.registry)]
    workers = {
        queue: Worker(
            client,
            task_queue=queue,
            workflows=[Scheduler, CompensationRequest],
            activities=activities,
            no_remote_activities=True,  # its own are all local: no queue is polled for them
            identity=name,
            graceful_shutdown_timeout=settings.shutdown_grace,
        )
        for queue in queues
    }
    await stack.enter_async_context(_at_work(workers, draining))
    dispatcher = Dispatcher(
        client,
        stores.store,
        stores.orders,
        stores.intake,
        stores.services,
        stores.registry,
        worker=name,
        slots=settings.task_slots,
        poll_interval=settings.poll_interval,
        draining=draining.begun,
    )
    stores.store.on_settled = dispatcher.wake
    watch = SupervisionWatch(Supervision(stores.store.database), client, sweep_terms(settings))
    housekeeper = Housekeeper(stores.intake, stores.orders, settings.orphan_grace)

    async def show() -> None:
        await publish_definitions(stores.intake, stores.registry, name)

    await _background(
        stack,
        draining,
        dispatcher.run(),
        repeat(ALIVE, show),
        repeat(settings.sweep_interval, watch.watch),
        repeat(TIDY, housekeeper.tidy),
    )
    stack.push_async_callback(_all_recorded, stores.store, name, draining.to_record_s)


async def _gone(intake: Intake, worker: str) -> None:
    """Say that nobody need count on this worker any more; a store that is away finds out by itself."""
    with suppress(Unreachable, TimeoutError):
        async with asyncio.timeout(1):
            await intake.leave(worker)


async def _all_recorded(store: StateStore, worker: str, within_s: float) -> None:
    """Wait until nothing is held here, as its calls have ended and given their tasks back, but for so long only.

    Others take over what waits for a worker elsewhere, or for a later answer.
    """
    with suppress(TimeoutError, Unreachable):
        async with asyncio.timeout(within_s):
            while await store.count_held(worker):  # noqa: ASYNC110 (the store tells nobody of it)
                await asyncio.sleep(_LOOK_S)


def _agent_workers(
    settings: Settings, client: Client, agents: Agents, services: set[str], stalls: StallDetector
) -> dict[str, Worker]:
    """One worker a task queue on which some definition places an Agent of these services."""
    placed: dict[str, set[str]] = {}
    for definition in registry():
        for step in definition.steps:
            service = agents.actions[step.action].service
            if step.queue and service in services:
                placed.setdefault(step.queue, set()).add(service)
                if step.answers_later and not _is_given(settings.callback_secret):
                    raise UsageError(f"step {step.name} of {definition.name} answers later: set SAS_CALLBACK_SECRET")
    _need_addresses(agents, {s for here in placed.values() for s in here})
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


def _need_addresses(agents: Agents, services: set[str]) -> None:
    if missing := agents.without_address(services):
        raise UsageError(f"no address of a service that this worker calls: set {', '.join(missing)}")


async def _supervisor(stack: AsyncExitStack, settings: Settings, client: Client) -> Worker:
    dsn = address(settings, "supervisor_database_url")
    check_schema(dsn, "state")
    database = await stack.enter_async_context(Database(dsn, name="state store", size=2))
    activities = SupervisorActivities(Supervision(database), client)
    return Worker(
        client,
        task_queue=SUPERVISOR_QUEUE,
        workflows=[Supervise],
        activities=activities.all,
        identity=process_name("supervisor"),
        graceful_shutdown_timeout=settings.shutdown_grace,
    )


async def _callbacks(
    stack: AsyncExitStack, settings: Settings, client: Client, store: StateStore, agents: Agents, draining: Draining
) -> None:
    if not _is_given(settings.callback_secret):
        raise UsageError("answers can't be told from forged ones: set SAS_CALLBACK_SECRET, or leave out this role")
    addresses = callback_addresses(settings)
    inbox = InboxStore(store.database)
    callbacks = Callbacks(store, inbox, client, registry(), agents.actions, addresses)
    config = uvicorn.Config(
        callbacks.app(deployment_of(settings)),
        host=settings.callback_host,
        port=settings.callback_port,
        http=GuardedProtocol,
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=_CALLBACKS_END_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())

    async def stop() -> None:
        server.should_exit = True
        await serving
        draining.left.remove("callbacks")

    draining.left.append("callbacks")
    stack.push_async_callback(stop)
    while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn offers no event for it)
        await asyncio.sleep(0.01)
    if serving.done() and not await _served_elsewhere(settings):
        raise UsageError(f"callbacks can't listen on {place(settings.callback_host, settings.callback_port)}")


async def _served_elsewhere(settings: Settings) -> bool:
    """Whether another worker of this deployment takes the answers here already: then this one need not."""
    url = f"http://{place(settings.callback_host, settings.callback_port)}/health"
    async with new_client() as http:
        try:
            found = bool((await http.get(url, timeout=2)).json().get("deployment") == deployment_of(settings))
        except (httpx.HTTPError, ValueError, AttributeError):
            return False
    if found:
        log.warning("another worker on this machine takes the answers", url=url)
    return found


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening; a port that is taken ends the server, not the process."""
        try:
            await super().startup(sockets)
        except SystemExit:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def callback_addresses(settings: Settings) -> CallbackAddresses:
    """Signed addresses for services that answer later.

    Raises:
        UsageError: A secret is too short to keep forgers out.
    """
    for name in settings.short_secrets():
        raise UsageError(f"{name} has fewer than {LEAST_SECRET} characters: `openssl rand -hex 32` makes one")
    secrets = (settings.callback_secret, settings.callback_secret_previous)
    return CallbackAddresses(settings.callback_url, *(s.get_secret_value() for s in secrets))


def _is_given(secret: SecretStr) -> bool:
    return bool(secret.get_secret_value())


async def _background(stack: AsyncExitStack, draining: Draining, *duties: Coroutine[Any, Any, None]) -> None:
    """Run duties until the stack unwinds; a duty that dies is a bug, and takes the process with it."""
    tasks = [asyncio.create_task(d) for d in duties]

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("a duty died", error=repr(task.exception()))
            draining.begin()

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    for task in tasks:
        task.add_done_callback(ended)
    stack.push_async_callback(stop)
