"""The parts of a process, put together from its settings: what `worker.py` and `starter.py` are composed of."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from domain.definition import Registry
from runtime.settings import Settings, address
from store.admission import GONE, Admission, AdmissionCaps
from store.breakers import BreakerTerms, CircuitBreakers
from store.database import Database
from store.orders import Orders
from store.schema import check_schema
from store.state_store import StateStore
from store.submission import SubmissionDesk

if TYPE_CHECKING:
    from supervisor.activities import SweepSettings


@dataclass(frozen=True)
class Stores:
    """Both databases, as the application's role, and the writers on them."""

    store: StateStore
    orders: Orders
    admission: Admission
    breakers: CircuitBreakers
    registry: Registry

    @property
    def desk(self) -> SubmissionDesk:
        """Where submissions are taken in."""
        return SubmissionDesk(self.admission, self.orders, self.registry)


@asynccontextmanager
async def open_stores(settings: Settings, *, size: int = 8, orders_may_be_away: bool = False) -> AsyncIterator[Stores]:
    """Both databases, their schema checked.

    `orders_may_be_away`: for who has work without it, as undo needs no business record.

    Raises:
        Unreachable: One has no address, does not answer, or has another schema version.
    """
    from definitions import registry  # noqa: PLC0415 (commands that only look have no use for the Agents' libraries)

    dsn = address(settings, "orders_url")
    check_schema(dsn, "orders", may_be_away=orders_may_be_away)
    async with (
        open_state_store(settings, size=size) as store,
        Database(dsn, name="orders database", size=size) as orders,
    ):
        yield Stores(
            store=store,
            orders=Orders(orders),
            admission=Admission(store.database, caps(settings)),
            breakers=CircuitBreakers(store.database, breaker_terms(settings)),
            registry=registry(),
        )


@asynccontextmanager
async def open_state_store(settings: Settings, *, size: int = 8) -> AsyncIterator[StateStore]:
    """The state store alone, its schema checked; raises as `open_stores`."""
    dsn = address(settings, "database_url")
    check_schema(dsn, "state")
    async with Database(dsn, name="state store", size=size) as database:
        yield StateStore(database, claim_within=settings.claim_within)


def caps(settings: Settings) -> AdmissionCaps:
    """Admission caps."""
    return AdmissionCaps(settings.max_in_flight, settings.max_pending, settings.max_pending_age)


def breaker_terms(settings: Settings) -> BreakerTerms:
    """When circuit breakers open and close, and at which pace tasks are let go after an outage."""
    return BreakerTerms(
        failures=settings.breaker_failures,
        pause=settings.breaker_pause,
        longest_pause=settings.breaker_longest_pause,
        per_s=settings.recovery_per_s,
        ramp=settings.recovery_ramp,
    )


def sweep_settings(settings: Settings) -> SweepSettings:
    """Bounds of a sweep, the pace of its recoveries, and what it alerts on."""
    from supervisor.activities import SweepSettings  # noqa: PLC0415 (it brings Temporal's SDK)

    return SweepSettings(
        interval_s=settings.sweep_interval.total_seconds(),
        window_s=settings.sweep_window.total_seconds(),
        page=settings.sweep_page,
        pages=settings.sweep_pages,
        recovery_per_s=settings.recovery_per_s,
        recovery_ramp_s=settings.recovery_ramp.total_seconds(),
        stuck_after_s=settings.stuck_after.total_seconds(),
        undo_stalled_after_s=settings.undo_stalled_after.total_seconds(),
        worker_gone_s=GONE.total_seconds(),
    )


def process_name(role: str) -> str:
    """Name of this process, unique: what `worker` and `actor` columns hold."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:6]}"
