"""An errand: three messages, one after the other, all sent by the worker that runs the attempt."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from activities.agents import mail
from domain.definition import Definition, Results, Step


class Errand(BaseModel):
    """The business record."""

    model_config = ConfigDict(extra="forbid")

    to: str


def tell(errand: Errand, _: Results) -> mail.Message:
    """A message."""
    return mail.Message(to=errand.to, template="errand", data={})


ERRAND = Definition(
    name="errand",
    version=1,
    record=Errand,
    steps=tuple(
        Step(name=name, action="mail.send", request=tell, no_effect=True, within=timedelta(seconds=5))
        for name in ("once", "again", "finally")
    ),
)
