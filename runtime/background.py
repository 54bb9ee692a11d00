"""What a worker does beside its work: shows that its definitions have a live worker, and watches the Supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from time import monotonic

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from domain.definition import Registry
from domain.faults import DefinitionError, Unreachable
from store.admission import Intake
from store.supervision import Supervision
from supervisor.activities import SweepTerms
from supervisor.schedule import ensure_schedule

log = structlog.get_logger(__name__)

TIDY = timedelta(seconds=5)
"""How often the housekeeper looks for submissions that were not finished."""


async def publish_definitions(intake: Intake, registry: Registry, worker: str) -> None:
    """Put every definition's policies on record, and show that this worker has it.

    Raises:
        DefinitionError: A released version says something else: a change needs a new version.
    """
    for definition in registry:
        if not await intake.publish(definition, worker):
            name = f"{definition.name} v{definition.version}"
            raise DefinitionError(f"{name} was released with other policies: give the change a new version")


async def repeat(interval: timedelta, duty: Callable[[], Awaitable[None]]) -> None:
    """Do a duty every so often until cancelled. What fails it is logged, and it is done again all the same."""
    while True:
        await asyncio.sleep(interval.total_seconds())
        try:
            await duty()
        except (Unreachable, RPCError) as error:
            log.warning("duty postponed", duty=duty.__name__, error=str(error))
        except Exception:
            log.exception("duty failed", duty=duty.__name__)


class SupervisionWatch:
    """Alerts on a missed sweep, and makes a missing Schedule again."""

    def __init__(self, supervision: Supervision, client: Client, terms: SweepTerms) -> None:
        self._supervision, self._client, self._terms = supervision, client, terms
        self._watching_since = monotonic()

    async def watch(self) -> None:
        """Look once. One alert an outage, however many workers look."""
        age = await self._supervision.last_sweep_age() or timedelta(seconds=monotonic() - self._watching_since)
        if age <= timedelta(seconds=3 * self._terms.interval_s):
            return
        message = f"no sweep for {age.total_seconds():.0f} s, the interval is {self._terms.interval_s:g} s"
        if await self._supervision.alert_missed_sweep(message):
            log.error("missed sweep", message=message)
        if await ensure_schedule(self._client, self._terms):
            log.warning("the Schedule was missing and was made again")
