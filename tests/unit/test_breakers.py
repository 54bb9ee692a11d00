"""What breakers did, as the audit reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from audit.breakers import SEEN, Breakers

OPENED = datetime(2025, 5, 1, 12, tzinfo=UTC)


def row(kind: str, state: str, at: datetime) -> SimpleNamespace:
    return SimpleNamespace(service="stock", kind=kind, state_to=state, task_id="other", at=at)


@pytest.mark.demand("H10", "C8")
def test_breaker_closed_before_a_clock_went_back_keeps_nobody_out() -> None:
    clock_went_back = OPENED - timedelta(minutes=1)
    breakers = Breakers.of([row("opened", "open", OPENED), row("closed", "closed", clock_went_back)])
    for later in (timedelta(), SEEN, timedelta(hours=1)):
        assert not breakers.kept_out("stock", "t", OPENED + later)
    assert Breakers.of([row("opened", "open", OPENED)]).kept_out("stock", "t", OPENED + timedelta(hours=1))
