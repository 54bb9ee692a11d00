"""An order: reserve stock, charge the card, book the shipment, send the confirmation."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from activities.agents import mail, payments, shipping, stock
from domain.definition import Backoff, Definition, Results, Step, Undo


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Customer(_Strict):
    """Who ordered."""

    name: str = Field(min_length=1, max_length=200)
    email: str = Field(pattern=r"^[^@\s]+@[^@\s]+$", max_length=254)


class Line(_Strict):
    """One article. The price is a unit's, in the currency's minor unit."""

    sku: str = Field(min_length=1, max_length=64)
    quantity: int = Field(ge=1, le=10_000)
    unit_price_minor: int = Field(ge=0)


class Address(_Strict):
    """Where to."""

    name: str = Field(min_length=1, max_length=200)
    line1: str = Field(min_length=1, max_length=200)
    city: str = Field(min_length=1, max_length=100)
    postcode: str = Field(min_length=1, max_length=20)
    country: str = Field(pattern=r"^[A-Z]{2}$")


class Order(_Strict):
    """The business record of an order."""

    customer: Customer
    lines: list[Line] = Field(min_length=1, max_length=200)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    card_token: str = Field(min_length=1, max_length=200)
    address: Address

    @property
    def total_minor(self) -> int:
        """Sum of the lines, in the currency's minor unit."""
        return sum(line.quantity * line.unit_price_minor for line in self.lines)


def reserve(order: Order, _: Results) -> stock.Reserve:
    """All lines, or none."""
    return stock.Reserve(sku_lines=[stock.SkuLine(sku=x.sku, quantity=x.quantity) for x in order.lines])


def charge(order: Order, _: Results) -> payments.Charge:
    """The whole sum."""
    return payments.Charge(amount_minor=order.total_minor, currency=order.currency, card_token=order.card_token)


def refund(order: Order) -> payments.Refund:
    """The whole sum."""
    return payments.Refund(amount_minor=order.total_minor, currency=order.currency)


def book(order: Order, _: Results) -> shipping.Book:
    """One parcel for every twenty pieces begun."""
    pieces = sum(line.quantity for line in order.lines)
    address = shipping.ShippingAddress(**order.address.model_dump())
    return shipping.Book(address=address, parcels=-(-pieces // 20))


def confirm(order: Order, results: Results) -> mail.Message:
    """The confirmation, with the tracking number."""
    data = {"name": order.customer.name, "tracking": results["ship"]["tracking"]}
    return mail.Message(to=order.customer.email, template="order-confirmed", data=data)


ORDER = Definition(
    name="order",
    version=1,
    record=Order,
    data_class="confidential",
    threshold=2,
    backoff=Backoff(first=timedelta(seconds=1), factor=2, most=timedelta(minutes=1)),
    on_refused="undo",
    on_spent="undo",
    steps=(
        Step(
            name="stock",
            action="stock.reserve",
            request=reserve,
            undo=Undo("stock.cancel"),
            within=timedelta(seconds=5),
        ),
        Step(
            name="charge",
            action="payments.charge",
            request=charge,
            undo=Undo("payments.refund", refund),
            queue="payments",
            within=timedelta(seconds=10),
        ),
        Step(
            name="ship",
            action="shipping.book",
            request=book,
            undo=Undo("shipping.cancel"),
            queue="shipping",
            within=timedelta(seconds=10),
            on_refused="error",
        ),
        Step(
            name="confirm",
            action="mail.send",
            request=confirm,
            no_effect=True,
            within=timedelta(seconds=5),
            on_refused="error",
        ),
    ),
)
