"""What a rehearsal is made of: examples of models, and a case for every step, forward and undone."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from chaos.rehearsal.cases import cases_of
from chaos.rehearsal.examples import example
from definitions import registry
from domain.definition import Definition
from domain.faults import UsageError


class Part(BaseModel):
    """A part."""

    weight: int = Field(gt=2)
    at: datetime


class Whole(BaseModel):
    """Of many types."""

    name: str = Field(min_length=3)
    kind: Literal["a", "b"]
    parts: list[Part] = Field(min_length=2)
    note: str | None
    more: str = "left out"


class Coded(BaseModel):
    """Of a pattern, with an example."""

    code: str = Field(pattern="^[A-Z]{2}$", examples=["FI"])


class Uncoded(BaseModel):
    """Of a pattern, without one."""

    code: str = Field(pattern="^[A-Z]{2}$")


def definition(name: str) -> Definition:
    found = registry().newest(name)
    assert found is not None
    return found


def test_example_is_what_its_model_takes() -> None:
    found = Whole.model_validate(example(Whole))
    assert (found.kind, len(found.parts), found.parts[0].weight) == ("a", 2, 3)
    assert example(Coded) == {"code": "FI"}


def test_model_without_an_example_says_how_to_give_it_one() -> None:
    with pytest.raises(UsageError, match=r"no example of Uncoded .* json_schema_extra"):
        example(Uncoded)


def test_every_step_dies_and_fails_forward_and_in_its_undo() -> None:
    cases = list(cases_of(definition("order")))
    kills = {point for case in cases for point in case.kills}
    for step in ("stock", "charge", "ship", "confirm"):
        assert {f"{when}:call:{step}" for when in ("before", "sent", "replied", "after")} <= kills
    assert {f"after:undo_complete:{step}" for step in ("stock", "charge", "ship")} <= kills
    assert "sent:undo_call:confirm" not in kills, "it has no undo"
    faults = [(case.undo, step.name, rule["kind"]) for case in cases for step, rule in case.faults]
    assert {(True, "charge", "lost_reply"), (False, "confirm", "duplicate")} <= set(faults)


def test_names_of_cases_differ() -> None:
    for name in ("order", "provisioning"):
        names = [case.name for case in cases_of(definition(name))]
        assert len(names) == len(set(names))
