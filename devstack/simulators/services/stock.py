"""Stock: reservations. There is any quantity of everything, except of a sku that begins with `OUT-`."""

from pydantic import BaseModel, Field

from devstack.simulators.messages import Answer, Create, Service, Undo, refusal, stable_id, success


class SkuLine(BaseModel):
    """So many pieces of one article."""

    sku: str = Field(min_length=1)
    quantity: int = Field(gt=0)


class ReservationRequest(BaseModel):
    """The articles of one order."""

    sku_lines: list[SkuLine] = Field(min_length=1)


def reserve(request: ReservationRequest, key: str) -> Answer:
    """Reserves all lines or none."""
    for line in request.sku_lines:
        if line.sku.startswith("OUT-"):
            return refusal(409, "out_of_stock", f"{line.sku} is out of stock")
    return success(201, {"reservation_id": stable_id("reservation", key)})


SERVICE = Service(
    "stock",
    (
        Create("/stock/reservations", ReservationRequest, reserve),
        Undo("/stock/reservations/undo", creates="/stock/reservations"),
    ),
)
