"""What the circuit breakers did, as the state store has it on record, and what a statement can have seen of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from audit.evidence import COMMITTED_WITHIN, Frozen
from domain.states import BreakerState, ServiceEventKind

SEEN_WITHIN = COMMITTED_WITHIN + timedelta(seconds=10)
"""By so much later than a breaker has moved, every statement has seen it: the move is committed by then, and what began
before its commit is over, since no statement takes more than ten seconds (`SESSION` in `store/database.py`)."""


class ServiceEventRow(Frozen):
    """A row of `service_event`."""

    kind: ServiceEventKind
    state_to: BreakerState
    task_id: str | None
    at: datetime

    def blocks(self, task_id: str) -> bool:
        """Whether from then on it kept this task from the service: open, and another one probes, or none."""
        probes = self.kind is ServiceEventKind.PROBE and self.task_id == task_id
        return self.state_to.is_open and not probes


class Breakers(Frozen):
    """What they did, by service, in the order of their commits."""

    events: Mapping[str, Sequence[ServiceEventRow]]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Breakers:
        """From the rows, in the order of commits; no time is before the last, even if the clock went back."""
        events: dict[str, list[ServiceEventRow]] = {}
        for row in rows:
            earlier, event = events.setdefault(row["service"], []), ServiceEventRow.model_validate(row)
            latest = max([event.at, *(e.at for e in earlier[-1:])])
            earlier.append(event.model_copy(update={"at": latest}))
        return cls(events=events)

    def was_blocked(self, service: str, task_id: str, at: datetime) -> bool:
        """Whether a statement of this task saw a breaker that kept it out, whichever of its last moves it saw.

        `at`: the instant of the statement's event; it may have looked earlier, and not have seen what came last.
        """
        events = self.events.get(service, ())
        before, until = (bisect_right(events, t, key=lambda e: e.at) for t in (at - SEEN_WITHIN, at))
        return before > 0 and all(e.blocks(task_id) for e in events[before - 1 : until])
