"""Instants and durations as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def instant(at: datetime | None) -> str:
    """An instant in UTC, to the millisecond."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z" if at else ""


def duration(span: timedelta) -> str:
    """A duration, to the second; to the tenth where it is short."""
    seconds = span.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else str(timedelta(seconds=round(seconds)))
