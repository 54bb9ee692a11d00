"""What breakers did, as the audit reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.breakers import SEEN_WITHIN, Breakers

OPENED = datetime(2025, 5, 1, 12, tzinfo=UTC)


def row(kind: str, state: str, at: datetime) -> dict[str, Any]:
    return {"service": "stock", "kind": kind, "state_to": state, "task_id": "other", "at": at}


@pytest.mark.demand("H10", "C8")
def test_breaker_closed_before_a_clock_went_back_keeps_nobody_out() -> None:
    clock_went_back = OPENED - timedelta(minutes=1)
    breakers = Breakers.of([row("opened", "open", OPENED), row("closed", "closed", clock_went_back)])
    for later in (timedelta(), SEEN_WITHIN, timedelta(hours=1)):
        assert not breakers.was_blocked("stock", "t", OPENED + later)
    assert Breakers.of([row("opened", "open", OPENED)]).was_blocked("stock", "t", OPENED + timedelta(hours=1))
