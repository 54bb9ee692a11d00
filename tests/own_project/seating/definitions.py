"""Seats for a guest, who is then in the book."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from sas.domain.definition import Definition, Results, Step, Undo

from seating.agents import Entry, Hold, Line


class Guest(BaseModel):
    """The business record."""

    name: str
    row: str
    seats: int


def hold(guest: Guest, _: Results) -> Hold:
    """As many seats as the guest wants."""
    return Hold(sku_lines=[Line(sku=guest.row, quantity=guest.seats)])


def write(guest: Guest, results: Results) -> Entry:
    """Who has which seats."""
    return Entry(text=f"{guest.name}: {results['seats']['reservation_id']}")


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
        Step(
            name="book",
            action="guest_book.write",
            request=write,
            undo=Undo("guest_book.strike"),
            within=timedelta(seconds=5),
        ),
    ),
)
