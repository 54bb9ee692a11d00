"""How much of a grant is left: by clocks that step back, and by one that goes on while the machine sleeps."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from activities.clock import uptime
from activities.queued import _left_s
from activities.reservations import Reservation, Reservations
from domain.messages import AgentRequest, Grant
from workflows.options import inbox_pauses

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WITHIN_S = 10.0


@pytest.mark.failure(44, 68)
@pytest.mark.demand("C3", "C4")
@pytest.mark.parametrize(
    ("granted", "scheduled", "started", "left_s"),
    [
        (0.0, 0.1, 0.2, 9.8),
        (0.0, 7.0, 7.1, 2.9),
        (0.0, 12.0, 12.1, -2.1),
        (0.0, 0.0, -3600.0, WITHIN_S),
        (0.0, -3600.0, -3599.9, WITHIN_S),
        (None, 5.0, 6.0, 9.0),
    ],
    ids=["at once", "a stall", "too late", "set back before it started", "set back before", "an older Scheduler"],
)
def test_time_left_counts_from_the_grant_and_never_exceeds_it(
    granted: float | None, scheduled: float, started: float, left_s: float
) -> None:
    info = replace(
        ActivityEnvironment().info,
        schedule_to_close_timeout=timedelta(seconds=WITHIN_S),
        scheduled_time=NOW + timedelta(seconds=scheduled),
        started_time=NOW + timedelta(seconds=started),
    )
    granted_at = None if granted is None else NOW + timedelta(seconds=granted)
    request = AgentRequest(
        task_id="t", step="s", action="a.b", body={}, keys=["k"], epoch=1, calls=1, run_id="r", granted_at=granted_at
    )
    assert _left_s(info, request) == pytest.approx(left_s)


@pytest.mark.demand("C3", "C4")
def test_grant_that_is_told_of_later_is_of_the_same_deadline() -> None:
    began = uptime() - 3
    reservation = Reservation(Grant(calls=1, within_s=WITHIN_S), began + 1 + WITHIN_S)
    told = reservation.as_grant(began).begun_at(NOW)
    assert told.granted_at is not None
    assert told.granted_at + timedelta(seconds=told.within_s) - NOW == pytest.approx(
        timedelta(seconds=1 + WITHIN_S), abs=timedelta(milliseconds=1)
    )


@pytest.mark.failure(68)
@pytest.mark.demand("C4")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the monotonic clock of this system counts sleep")
def test_reservation_ages_also_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a machine sleeps its monotonic clock stands still; another one, which the system keeps, goes on."""
    clock_gettime, slept_s = time.clock_gettime, 0.0
    monkeypatch.setattr(
        time, "clock_gettime", lambda c: clock_gettime(c) + (slept_s if c == time.CLOCK_BOOTTIME else 0)
    )
    held = Reservations()
    held.put("run", "step", False, Reservation(Grant(calls=1, within_s=WITHIN_S), uptime() + WITHIN_S))
    slept_s = 3600
    reservation = held.take("run", "step", False)
    assert reservation is not None
    assert reservation.as_grant(uptime()).within_s == 0


@pytest.mark.demand("C11")
@pytest.mark.parametrize("within_s", [1, 4, 30, 3600, 86_400 * 30])
def test_waiting_attempt_looks_into_the_inbox_before_its_deadline(within_s: int) -> None:
    pauses = inbox_pauses(within_s)
    assert len(pauses) <= 20
    assert sum(pauses) == pytest.approx(max(0, within_s - 2))
