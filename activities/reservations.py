"""Reservations of this process: calls that were reserved in the store and not made yet.

A reservation is good for one use, in the process that made it, until its deadline on this process's monotonic clock,
which was read before the statement was sent. Whoever finds none must reserve anew, by a guarded write.
"""

from __future__ import annotations

from dataclasses import dataclass

from activities.clock import uptime
from domain.messages import Grant

Key = tuple[str, str, bool]


@dataclass(frozen=True)
class Reservation:
    """What was granted, until `deadline` (on the clock of `uptime`)."""

    grant: Grant
    deadline: float

    def as_grant(self, began: float) -> Grant:
        """What is left of it now, told of by an activity that began then."""
        now = uptime()
        return self.grant.model_copy(update={"within_s": max(0.0, self.deadline - now), "after_s": now - began})


class Reservations:
    """By run, step and direction."""

    def __init__(self) -> None:
        self._held: dict[Key, Reservation] = {}

    def put(self, run_id: str, step: str, undo: bool, reservation: Reservation) -> None:
        """Keep a reservation; those whose deadline has passed are forgotten."""
        now = uptime()
        self._held = {k: r for k, r in self._held.items() if r.deadline > now}
        self._held[(run_id, step, undo)] = reservation

    def take(self, run_id: str, step: str, undo: bool) -> Reservation | None:
        """Use a reservation up."""
        return self._held.pop((run_id, step, undo), None)

    def peek(self, run_id: str, step: str, undo: bool) -> Reservation | None:
        """Look at a reservation that a queued activity will use, whose scheduling may have been discarded."""
        return self._held.get((run_id, step, undo))
