"""A freight partner: OAuth client credentials, our certificate, a rate limit, errors as problem+json."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

from pydantic import BaseModel

from activities.agent import Agent, Found, action
from activities.authentication import ClientCredentials
from activities.call import Call
from activities.meanings import Meaning
from domain.messages import Json


class Book(BaseModel):
    """Book a transport of so many parcels."""

    parcels: int


class Booked(BaseModel):
    """The booking, by the partner's own number."""

    number: str


class Freight(Agent):
    """The partner: 429 with `Retry-After` is waited for, within the time left or by the next attempt."""

    service = "freight"
    authentication = ClientCredentials(scope="bookings")
    key_header = "X-Request-ID"
    fence_header = time_left_header = ""
    most_connections = 4
    call_within = timedelta(seconds=10)
    keeps_tombstones = False
    means = {"already-cancelled": Meaning.SUCCESS}

    def error_in(self, body: Json) -> tuple[str, str]:
        """Of problem+json."""
        return body["type"], body["detail"]

    @action
    async def book(self, call: Call, request: Book) -> Booked:
        """Book, under our reference."""
        return Booked.model_validate((await call.post("/bookings", request, params={"reference": call.key})).body)

    @action
    async def cancel(self, call: Call, booked: Booked | None) -> None:
        """Cancel the booking, if there is one."""
        if booked is not None:
            await call.post(f"/bookings/{quote(booked.number, safe='')}/cancel")

    async def find(self, call: Call, key: str) -> Found | None:
        """Look for our reference."""
        reply = await call.get("/bookings", params={"reference": key})
        return Found("done", 200, reply.body["items"][0]) if reply.body["items"] else None
