"""Volumes: a hundred pages one after the other, each second one by a queued Agent; each step sees all receipts."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel

from domain.definition import Definition, Results, Step, Undo
from domain.definition_checks import MOST_STEPS
from tests.failures.large.archive import Page, Removal


class Volume(BaseModel):
    """The business record."""

    text: str


def keep(volume: Volume, results: Results) -> Page:
    """The whole text again."""
    return Page(text=volume.text, seen=sum(len(r["text"]) for r in results.values()))


def remove(volume: Volume) -> Removal:
    """The whole text again."""
    return Removal(text=volume.text)


VOLUMES = Definition(
    name="volumes",
    version=1,
    record=Volume,
    steps=tuple(
        Step(
            name=f"page{n:03d}",
            action="archive.keep",
            request=keep,
            undo=Undo("archive.remove", remove),
            within=timedelta(seconds=5),
            queue="archive" if n % 2 else None,
        )
        for n in range(MOST_STEPS)
    ),
)
