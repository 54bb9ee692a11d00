"""Poison: whoever builds the request of its second step dies."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from activities.agents import mail, stock
from domain.definition import Backoff, Definition, Results, Step, Undo


class Dose(BaseModel):
    """The business record."""

    model_config = ConfigDict(extra="forbid")

    sku: str


def reserve(dose: Dose, _: Results) -> stock.Reserve:
    """One piece."""
    return stock.Reserve(sku_lines=[stock.SkuLine(sku=dose.sku, quantity=1)])


def kill(dose: Dose, _: Results) -> mail.Message:
    """Never returns, as if the interpreter had crashed."""
    os.kill(os.getpid(), signal.SIGKILL)
    return mail.Message(to="", template="", data=dose.model_dump())


POISON = Definition(
    name="poison",
    version=1,
    record=Dose,
    backoff=Backoff(first=timedelta(milliseconds=100), most=timedelta(milliseconds=100)),
    most_attempts=3,
    steps=(
        Step(
            name="reserve",
            action="stock.reserve",
            request=reserve,
            undo=Undo("stock.cancel"),
            within=timedelta(seconds=3),
        ),
        Step(name="kill", action="mail.send", request=kill, no_effect=True, within=timedelta(seconds=3)),
    ),
)
