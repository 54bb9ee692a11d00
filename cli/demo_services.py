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
class Fault:
    """A way to fail that was asked for, and how many calls it has hit."""

    service: str
    kind: str
    fired: int


@dataclass(frozen=True)
class Ledgers:
    """What the services have on record, by service: the witness that is independent of the state store."""

    by_service: Mapping[str, Json]

    def effects(self) -> list[tuple[str, Json]]:
        """`(service, effect)` of every effect there ever was."""
        return [(service, e) for service, ledger in self.by_service.items() for e in ledger["effects"]]

    def live(self) -> Counter[tuple[str, str]]:
        """How many effects stand, by task and step."""
        return Counter((e["task_id"], e["step"]) for _, e in self.effects() if e["undone_at"] is None)

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


class Services:
    """Client of the simulators' control interface. Open it with `async with`."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=f"{url}/control", timeout=5, trust_env=False)

    async def __aenter__(self) -> Services:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def fail(self, service: str, kind: str, **rule: Any) -> None:
        """Let a service fail in this way from now on."""
        answer = await self._client.post(f"/{service}/faults", json={"kind": kind, **rule})
        answer.raise_for_status()

    async def faults(self) -> list[Fault]:
        """Every way to fail that was asked for."""
        found = []
        for service in (await self.ledgers()).by_service:
            rules = (await self._client.get(f"/{service}/faults")).raise_for_status().json()
            found += [Fault(service, r["rule"]["kind"], r["fired"]) for r in rules]
        return found

    async def ledgers(self) -> Ledgers:
        """Everything on record now."""
        return Ledgers((await self._client.get("/ledger")).raise_for_status().json())
