"""The circuit breakers of remote services, as a person sees them and moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from domain.faults import NotFound
from operators.times import instant
from store.breakers import CircuitBreakers, Forced
from store.reads import Reads
from store.rows import ServiceEvent, ServiceRow


@dataclass(frozen=True)
class KnownServices:
    """All services; or the one that was asked for, with what last moved its breaker. `now`: the store's time."""

    rows: Sequence[ServiceRow]
    moves: Sequence[ServiceEvent] | None
    now: datetime


async def look_up(reads: Reads, name: str | None) -> KnownServices:
    """All services, or the one of this name.

    Raises:
        NotFound: No definition needs a service of this name.
    """
    rows, now = await reads.services()
    if name is None:
        return KnownServices(rows, None, now)
    found = [r for r in rows if r.name == name]
    if not found:
        there_are = ", ".join(r.name for r in rows) or "none yet: a worker that starts puts its definitions on record"
        raise NotFound(f"no definition needs a service {name!r} (there are: {there_are})")
    return KnownServices(found, await reads.breaker_moves(name), now)


async def force(
    breakers: CircuitBreakers, reads: Reads, name: str, state: Forced | None, *, requester: str, reason: str
) -> KnownServices:
    """Hold a service's breaker open or closed, or leave it to itself (None). Raises as `look_up`."""
    await look_up(reads, name)
    await breakers.force(name, state, requester=requester, reason=reason)
    return await look_up(reads, name)


def state_of(service: ServiceRow) -> str:
    """`open` or `closed`, as it holds for tasks: a person's word before the breaker's own judgement."""
    return service.forced or service.state


def has_moved(service: ServiceRow) -> bool:
    """Whether `since` says something: a breaker that never opened has been closed since its service was first seen."""
    return service.state == "open" or service.forced_by is not None


def next_probe(service: ServiceRow, now: datetime) -> str:
    """When an open breaker lets the next task through."""
    if service.probe_until is not None and service.probe_until > now:
        return f"by {instant(service.probe_until)}, when the present one must have answered"
    if service.retry_at and service.retry_at > now:
        return f"at {instant(service.retry_at)}"
    return "with the next task that needs it"
