"""Every worker of the Scheduler watches the Supervisor, which nothing else would miss."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic

import structlog
from temporalio.client import Client

from store.supervision import Supervision
from supervisor.activities import SweepSettings
from supervisor.schedule import ensure_schedule

log = structlog.get_logger(__name__)


class SupervisionWatch:
    """Alerts on a missed sweep, and makes a missing Schedule again."""

    def __init__(self, supervision: Supervision, client: Client, settings: SweepSettings) -> None:
        self._supervision, self._client, self._settings = supervision, client, settings
        self._watching_since = monotonic()

    async def watch(self) -> None:
        """Look once. One alert an outage, however many workers look."""
        age = await self._supervision.last_sweep_age() or timedelta(seconds=monotonic() - self._watching_since)
        if age <= timedelta(seconds=3 * self._settings.interval_s):
            return
        message = f"no sweep for {age.total_seconds():.0f} s, the interval is {self._settings.interval_s:g} s"
        if await self._supervision.alert_missed_sweep(message):
            log.error("missed sweep", message=message)
        if await ensure_schedule(self._client, self._settings):
            log.warning("the Schedule was missing and was made again")
