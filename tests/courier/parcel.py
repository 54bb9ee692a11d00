"""A parcel: one step, at a service that keeps no tombstones, so that its undo needs a quarantine."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from activities.agents.shipping import Book, ShippingAddress
from domain.definition import Definition, Results, Step, Undo

QUARANTINE = timedelta(seconds=2)


class Parcel(BaseModel):
    """The business record."""

    to: ShippingAddress


def collect(parcel: Parcel, _: Results) -> Book:
    """One parcel."""
    return Book(address=parcel.to, parcels=1)


PARCEL = Definition(
    name="parcel",
    version=1,
    record=Parcel,
    steps=(
        Step(
            name="collect",
            action="courier.collect",
            request=collect,
            undo=Undo("courier.cancel", budget=60, quarantine=QUARANTINE),
            within=timedelta(seconds=1),
        ),
    ),
)
