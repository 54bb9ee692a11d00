"""The clock by which a process measures how much of what it was granted is left."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def uptime() -> float:
    """Seconds that nobody sets, and that go on while the machine sleeps: what was granted before is older then.

    Where the system has no such clock (macOS counts so by its monotonic one) it is the monotonic one.
    """
    return time.clock_gettime(_CLOCK)
