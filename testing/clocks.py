"""Processes whose clock is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path


def clock_off_by(offset: str) -> Mapping[str, str] | None:
    """Variables of a process whose clock is off by so much, such as `-2h`; None where there is no libfaketime.

    What it measures time with (the monotonic clock) is left alone, as it is when somebody sets a clock.
    """
    spec = importlib.util.find_spec("libfaketime")
    packaged = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    places = [p / "vendor/libfaketime/src/libfaketime.so.1" for p in packaged]
    found = [p for p in (*places, *Path("/usr/lib").glob("*/faketime/libfaketime.so.1")) if p.exists()]
    if not found:
        return None
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
