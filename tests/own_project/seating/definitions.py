"""Seats for a guest."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from sas.domain.definition import Definition, Results, Step, Undo

from seating.agents import Hold, Line


class Guest(BaseModel):
    """The business record."""

    row: str
    seats: int


def hold(guest: Guest, _: Results) -> Hold:
    """As many seats as the guest wants."""
    return Hold(sku_lines=[Line(sku=guest.row, quantity=guest.seats)])


SEATING = Definition(
    name="seating",
    version=1,
    record=Guest,
    steps=(
        Step(
            name="seats",
            action="hall.hold",
            request=hold,
            undo=Undo("hall.give_back"),
            within=timedelta(seconds=5),
        ),
    ),
)
