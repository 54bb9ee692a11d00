"""The role `scheduler`: it claims tasks and runs their attempts, and shows that its definitions have a live worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.bookkeeping import Bookkeeping
from activities.call_loop import Agents
from activities.draining import Draining
from activities.reservations import Reservations
from domain.definition import Registry
from domain.faults import DefinitionError, Unreachable
from domain.ids import TASK_QUEUE
from domain.worst_case import worst_case
from runtime.background import in_background, repeat
from runtime.dispatcher import Dispatcher
from runtime.roles.workers import at_work, check_access
from runtime.settings import Settings
from runtime.supervision_watch import SupervisionWatch
from runtime.temporal import queue_of
from runtime.wiring import Stores, open_stores, process_name, sweep_settings
from store.admission import ALIVE, Admission
from store.housekeeping import Housekeeper
from store.inbox import InboxStore
from store.state_store import StateStore
from store.supervision import Supervision
from workflows.compensation_request import CompensationRequest
from workflows.scheduler import Scheduler

log = structlog.get_logger(__name__)

_TIDY = timedelta(seconds=5)
"""How often the housekeeper looks for submissions that were not finished."""
_POLL_S = 0.05


@asynccontextmanager
async def scheduler_at_work(
    settings: Settings, client: Client, agents: Agents, draining: Draining
) -> AsyncIterator[None]:
    """Claim tasks and run them for as long as the context lasts; then wait until nothing is held here.

    Raises:
        UsageError: A service that this worker calls has no address.
        DefinitionError: A released version says something else.
        Unreachable: The state store can't be used.
    """
    name = process_name("scheduler")
    async with (
        open_stores(settings, orders_may_be_away=True) as stores,
        _definitions_shown(stores, agents, name),
        _bookkeeping(stores, agents) as bookkeeping,
        at_work(_workers(settings, client, stores.registry, bookkeeping, name), draining),
    ):
        dispatcher = Dispatcher(
            client,
            stores.store,
            stores.orders,
            stores.breakers,
            stores.registry,
            worker=name,
            slots=settings.task_slots,
            poll_interval=settings.poll_interval,
            draining=draining.begun,
        )
        stores.store.tasks.on_settled = dispatcher.wake
        watch = SupervisionWatch(Supervision(stores.store.database), client, sweep_settings(settings))
        housekeeper = Housekeeper(stores.admission, stores.orders, settings.orphan_grace)

        async def show() -> None:
            await publish_definitions(stores.admission, stores.registry, name)

        async with in_background(
            draining,
            dispatcher.run(),
            repeat(ALIVE, show),
            repeat(settings.sweep_interval, watch.watch),
            repeat(_TIDY, housekeeper.tidy),
        ):
            try:
                yield
            finally:
                await _all_recorded(stores.store, name, draining.to_record_s)


async def publish_definitions(admission: Admission, registry: Registry, worker: str) -> None:
    """Put every definition's policies on record, and show that this worker has it.

    Raises:
        DefinitionError: A released version says something else: a change needs a new version.
    """
    for definition in registry:
        if not await admission.publish(definition, worker):
            name = f"{definition.name} v{definition.version}"
            raise DefinitionError(f"{name} was released with other policies: give the change a new version")


@asynccontextmanager
async def _definitions_shown(stores: Stores, agents: Agents, worker: str) -> AsyncIterator[None]:
    """For as long as the context lasts, others may count on this worker for its definitions."""
    inline = {service for d in stores.registry for s in d.steps if s.queue is None for service in s.services}
    check_access(agents, inline)
    try:
        await publish_definitions(stores.admission, stores.registry, worker)
        for definition in stores.registry:
            worst = {s.name: asdict(worst_case(definition, s)) for s in definition.steps}
            log.info("worst case", definition=definition.name, version=definition.version, steps=worst)
        yield
    finally:
        await _leave(stores.admission, worker)


async def _leave(admission: Admission, worker: str) -> None:
    """Say that nobody need count on this worker any more; a store that is away finds out by itself."""
    with suppress(Unreachable, TimeoutError):
        async with asyncio.timeout(1):
            await admission.leave(worker)


@asynccontextmanager
async def _bookkeeping(stores: Stores, agents: Agents) -> AsyncIterator[Bookkeeping]:
    inbox = InboxStore(stores.store.database)
    bookkeeping = Bookkeeping(stores.store, inbox, stores.breakers, Reservations(), agents)
    try:
        yield bookkeeping
    finally:
        await bookkeeping.close()


def _workers(
    settings: Settings, client: Client, registry: Registry, bookkeeping: Bookkeeping, name: str
) -> Mapping[str, Worker]:
    """One worker for each definition's task queue, and one for requests for undo."""
    activities: list[Callable[..., Any]] = [
        bookkeeping.inline_step,
        bookkeeping.begin_step,
        bookkeeping.write_outcome,
        bookkeeping.results,
        bookkeeping.find_answer,
        bookkeeping.finish_undo,
        bookkeeping.release,
        bookkeeping.request_undo,
    ]
    return {
        queue: Worker(
            client,
            task_queue=queue,
            workflows=[Scheduler, CompensationRequest],
            activities=activities,
            no_remote_activities=True,  # its own are all local: no queue is polled for them
            identity=name,
            graceful_shutdown_timeout=settings.shutdown_grace,
        )
        for queue in [TASK_QUEUE, *(queue_of(d.name, d.version) for d in registry)]
    }


async def _all_recorded(store: StateStore, worker: str, within_s: float) -> None:
    """Wait until nothing is held here, as its calls have ended and given their tasks back, but for so long only.

    Others take over what waits for a worker elsewhere, or for a later answer.
    """
    with suppress(TimeoutError, Unreachable):
        async with asyncio.timeout(within_s):
            while await store.claims.count_held(worker):  # noqa: ASYNC110 (the store tells nobody of it)
                await asyncio.sleep(_POLL_S)
