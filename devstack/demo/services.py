"""The simulated services as the demo uses them: told to fail, and asked what is in their ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx

from domain.messages import Json


@dataclass(frozen=True)
class Sabotage:
    """A way to fail that was asked for, and how many calls it has hit."""

    service: str
    kind: str
    fired: int


@dataclass(frozen=True)
class Tally:
    """What the services have on record, by service, and how much of it: a witness that is independent of the store."""

    by_service: Mapping[str, Json]

    def calls(self) -> Counter[tuple[str, str, bool]]:
        """How many calls were received, by task, step and whether it was for the undo."""
        calls = [c for ledger in self.by_service.values() for c in ledger["calls"]]
        keys = [((c["key"] or "::").split(":"), c["undo"]) for c in calls]
        return Counter((task, step, undo) for (task, step, _), undo in keys)

    def refusals(self) -> Counter[tuple[str, str]]:
        """How many calls were refused, by service and reason."""
        return Counter((s, r["outcome"]) for s, ledger in self.by_service.items() for r in ledger["refusals"])

    def count(self, service: str, what: str) -> int:
        """How many `effects`, `tombstones`, `calls` or `refusals` a service has."""
        return len(self.by_service[service][what])

    def replays(self, service: str) -> int:
        """How many calls of a service were answered from memory, without a second effect."""
        return sum(c["outcome"] == "replayed" for c in self.by_service[service]["calls"])


class SimulatorControl:
    """Client of the simulators' control interface. Open it with `async with`."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=f"{url}/control", timeout=5, trust_env=False)

    async def __aenter__(self) -> SimulatorControl:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def fail(self, service: str, kind: str, **rule: Any) -> None:
        """Let a service fail in this way from now on."""
        answer = await self._client.post(f"/{service}/faults", json={"kind": kind, **rule})
        answer.raise_for_status()

    async def sabotages(self) -> list[Sabotage]:
        """Every way to fail that was asked for."""
        found = []
        for service in (await self.tally()).by_service:
            rules = (await self._client.get(f"/{service}/faults")).raise_for_status().json()
            found += [Sabotage(service, r["rule"]["kind"], r["fired"]) for r in rules]
        return found

    async def tally(self) -> Tally:
        """Everything on record now."""
        return Tally((await self._client.get("/ledger")).raise_for_status().json())
