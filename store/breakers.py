"""Circuit breakers, one a remote service, in the store, so that every worker sees the same one.

Attempts that fail in a row open it. While it is open no step that needs the service begins, lock owners release their
tasks without spending budget, and claims pass over tasks whose next step needs it. From `retry_at` on one task at a
time, under a lease, is let through as a probe: if it succeeds the breaker closes, and those that waited go at a pace.
Whatever moves a breaker leaves a `service_event`, in the same statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Literal
from uuid import uuid4

from domain.faults import Unreachable
from domain.text import clean
from store.alerts import alert_once
from store.connection import is_of_rows
from store.database import Database, Params
from store.queries import query

Forced = Literal["open", "closed"]
"""What a person may say of a service."""


@dataclass(frozen=True)
class BreakerTerms:
    """When breakers open and close.

    Attributes:
        failures: Attempts in a row that fail before one opens.
        pause: Before the first probe; doubles with each that fails, up to `longest_pause`.
        lease: Time that a probe has, from its choice to its answer.
        per_s: Tasks a second that are let go at most after an outage. ramp: time until it is that many.
    """

    failures: int = 5
    pause: timedelta = timedelta(seconds=5)
    longest_pause: timedelta = timedelta(minutes=1)
    lease: timedelta = timedelta(seconds=20)
    per_s: float = 20.0
    ramp: timedelta = timedelta(seconds=10)


_FRESH_S = 1.0
_THERE = "INSERT INTO service (name) VALUES (%(name)s) ON CONFLICT (name) DO NOTHING"


class CircuitBreakers:
    """The breakers, as workers see and move them."""

    def __init__(self, database: Database, terms: BreakerTerms) -> None:
        self._database, self._terms = database, terms
        self._troubled: set[str] = set()
        self._looked_at = float("-inf")

    async def failed(self, name: str, task_id: str, cause: str, *, report: str) -> bool:
        """An attempt at a service has failed, or did not reach it. Whether its breaker opened by that.

        `report`: the attempt and its step; said again, as after a lost acknowledgement, it changes nothing.
        """
        terms = self._terms
        self._troubled.add(name)
        params = {
            "name": name,
            "task_id": task_id,
            "cause": cause,
            "report": report,
            "threshold": terms.failures,
            "pause_s": terms.pause.total_seconds(),
            "longest_pause_s": terms.longest_pause.total_seconds(),
        }
        _, rows = await self._database.transaction((_THERE, params), (query("breaker_failed"), params))
        return any(r["trips"] for r in rows[1])

    async def answered(self, name: str, task_id: str) -> None:
        """A service has answered, well or with a refusal. Costs nothing while all is well."""
        if name in self._troubled:
            params = self._pace(name, task_id, by_hand=False)
            await self._let_go(params, (query("breaker_succeeded"), params))

    async def lease(self, loaded: Sequence[tuple[str, int]]) -> bool:
        """Choose the tasks that probe the open services whose pause is over; looks at most once a second.

        Returns:
            Whether one was chosen: it may be claimed now.
        """
        if monotonic() - self._looked_at < _FRESH_S:
            return False
        self._looked_at = monotonic()
        found = await self._database.rows(
            "SELECT name, state = 'open' AS open FROM service WHERE state = 'open' OR failures > 0 OR openings > 0"
        )
        self._troubled = {r["name"] for r in found}
        if not any(r["open"] for r in found):
            return False
        params = {
            "definitions": [name for name, _ in loaded],
            "versions": [version for _, version in loaded],
            "lease_s": self._terms.lease.total_seconds(),
        }
        return bool(await self._database.rows(query("breaker_lease"), params))

    async def force(self, name: str, forced: Forced | None, *, requester: str, reason: str) -> None:
        """A person opens or closes a breaker, or leaves it to itself again; those that waited go at a pace."""
        said = {"forced": forced, "requester": requester, "reason": reason, "request": uuid4().hex}
        params = {**self._pace(name, "", by_hand=True), **said}
        words = ((_THERE, params), (query("breaker_force"), params))
        await (self._database.transaction(*words) if forced == "open" else self._let_go(params, *words))

    async def _let_go(self, params: Params, *words: tuple[str, Params]) -> None:
        """Close a breaker, and let those that waited go at a pace; if one of them refuses, let all go as they are.

        A service that is back is not kept from all for the sake of one row.
        """
        try:
            await self._database.transaction((query("release_waiting"), params), *words)
        except Exception as error:
            if isinstance(error, Unreachable) or not is_of_rows(error):
                raise
            message = f"those that waited for service {params['name']} go without a pace: {clean(str(error))[:500]}"
            await self._database.transaction(*words, alert_once("not_paced", message))

    def _pace(self, name: str, task_id: str, *, by_hand: bool) -> dict[str, Any]:
        terms = self._terms
        return {
            "name": name,
            "task_id": task_id,
            "by_hand": by_hand,
            "per_s": terms.per_s,
            "ramp_s": terms.ramp.total_seconds(),
        }
