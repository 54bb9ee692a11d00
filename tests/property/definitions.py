"""The shipped definitions, a sequence and a graph; each also with bounds so small that a few rules reach them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from domain.definition import Definition, ExtendedWait, Step
from tests.integration.store_bench import shipped

ORDER, PROVISIONING = shipped("order"), shipped("provisioning")


def _tight(step: Step, quarantine: timedelta | None = None) -> Step:
    undo = replace(step.undo, calls=1, budget=12 if quarantine else 6, quarantine=quarantine) if step.undo else None
    return replace(step, calls=1, budget=3, undo=undo)


TIGHT_ORDER = replace(
    ORDER,
    version=ORDER.version + 1,
    threshold=1,
    extended_wait=ExtendedWait(timedelta(hours=1)),
    on_spent="error",
    most_attempts=4,
    steps=tuple(_tight(s) for s in ORDER.steps),
)
"""Ends in Error sooner or later, after an extended wait."""
TIGHT_PROVISIONING = replace(
    PROVISIONING,
    version=PROVISIONING.version + 1,
    threshold=0,
    steps=tuple(_tight(s, timedelta(hours=1) if s.name == "disk" else None) for s in PROVISIONING.steps),
)
"""Is undone after one failure; the service of its disks keeps no tombstones."""
DEFINITIONS: dict[str, Definition] = {
    "order": ORDER,
    "provisioning": PROVISIONING,
    "order with tight bounds": TIGHT_ORDER,
    "provisioning with tight bounds": TIGHT_PROVISIONING,
}
