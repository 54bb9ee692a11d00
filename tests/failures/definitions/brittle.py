"""Brittle: a definition whose functions fail as its record says. What is refused is undone, but for its first step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

from activities.agents import mail, payments, stock
from domain.definition import Definition, Results, Step, Undo


class Glass(BaseModel):
    """The business record: which function fails, and how."""

    model_config = ConfigDict(extra="forbid")

    fails: str
    how: str = "raises"


def _made(glass: Glass, name: str, made: Any) -> Any:
    if glass.fails != name:
        return made
    match glass.how:
        case "raises":
            raise ZeroDivisionError("nothing to divide by")
        case "gives a text":
            return "a text"
        case "gives another request":
            return payments.Refund(amount_minor=100, currency="EUR")
        case "gives NaN":
            return mail.Message(to="", template="", data={"sum": float("nan")})
        case "gives NUL":
            return mail.Message(to="", template="", data={"name": "a\x00b"})
        case _:
            return mail.Message(to="", template="", data={"text": "x" * 300_000})


def first(glass: Glass, _: Results) -> stock.Reserve:
    """One piece."""
    line = stock.SkuLine(sku="TEA-01", quantity=1)
    return _made(glass, "first", stock.Reserve(sku_lines=[line]))  # type: ignore[no-any-return]  # that it may be something else is the point


def second(glass: Glass, _: Results) -> payments.Charge:
    """One euro."""
    charge = payments.Charge(amount_minor=100, currency="EUR", card_token="tok_visa")
    return _made(glass, "second", charge)  # type: ignore[no-any-return]  # likewise


def refund(glass: Glass) -> payments.Refund:
    """The euro."""
    return _made(glass, "undo", payments.Refund(amount_minor=100, currency="EUR"))  # type: ignore[no-any-return]  # likewise


def tell(glass: Glass, results: Results) -> mail.Message:
    """The message."""
    return _made(glass, "tell", mail.Message(to="a", template="b", data=results["second"]))  # type: ignore[no-any-return]


BRITTLE = Definition(
    name="brittle",
    version=1,
    record=Glass,
    on_refused="undo",
    steps=(
        Step(
            name="first",
            action="stock.reserve",
            request=first,
            undo=Undo("stock.cancel"),
            within=timedelta(seconds=3),
            on_refused="error",
        ),
        Step(
            name="second",
            action="payments.charge",
            request=second,
            undo=Undo("payments.refund", refund),
            within=timedelta(seconds=3),
        ),
        Step(name="tell", action="mail.send", request=tell, no_effect=True, within=timedelta(seconds=3)),
    ),
)
