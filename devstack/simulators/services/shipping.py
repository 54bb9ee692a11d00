"""Shipping: shipments. Country `XX` and the line `Unknown` are addresses that nobody finds."""

from pydantic import BaseModel, Field

from devstack.simulators.messages import Answer, Create, Service, Undo, refusal, stable_id, success


class Address(BaseModel):
    """Where the parcels go."""

    name: str
    line1: str
    city: str
    postcode: str
    country: str


class ShipmentRequest(BaseModel):
    """An address and a number of parcels."""

    address: Address
    parcels: int = Field(gt=0)


def ship(request: ShipmentRequest, key: str) -> Answer:
    """Orders the transport."""
    if request.address.country == "XX" or request.address.line1 == "Unknown":
        place = f"{request.address.line1}, {request.address.country}"
        return refusal(422, "unknown_address", f"no such address: {place}")
    shipment_id = stable_id("shipment", key)
    return success(201, {"shipment_id": shipment_id, "tracking": f"TRK{shipment_id[-12:].upper()}"})


SERVICE = Service(
    "shipping",
    (
        Create("/shipping/shipments", ShipmentRequest, ship),
        Undo("/shipping/shipments/cancel", creates="/shipping/shipments"),
    ),
)
