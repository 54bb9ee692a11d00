"""A freight partner: OAuth client credentials, a rate limit, errors as problem+json, bookings by its own number."""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

CLIENT, SECRET = "us", "freight-canary-73"


class FreightPartner:
    """Its bookings. `allowed`: so many requests it takes before the next one has to wait for a second."""

    def __init__(self) -> None:
        self.bookings: list[dict[str, Any]] = []
        self.tokens, self.allowed, self.limited, self.lost = 0, 1_000, 0, 0
        self.app = FastAPI()
        self.app.add_route("/token", self._token, methods=["POST"])
        self.app.add_route("/bookings", self._bookings, methods=["GET", "POST"])
        self.app.add_route("/bookings/{number:path}/cancel", self._cancel, methods=["POST"])

    @property
    def standing(self) -> list[str]:
        """Numbers of the bookings that are not cancelled."""
        return [b["number"] for b in self.bookings if not b["cancelled"]]

    async def _token(self, request: Request) -> JSONResponse:
        form = dict(parse_qsl((await request.body()).decode()))
        if request.headers["authorization"] != f"Basic {b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}":
            return JSONResponse({"error": "invalid_client"}, 401)
        assert form == {"grant_type": "client_credentials", "scope": "bookings"}
        self.tokens += 1
        return JSONResponse({"access_token": f"freight-token-{self.tokens}", "expires_in": 600})

    async def _bookings(self, request: Request) -> JSONResponse:
        if (refused := self._refused(request)) is not None:
            return refused
        reference = request.query_params["reference"]
        found = [b for b in self.bookings if b["reference"] == reference]
        if request.method == "GET":
            return JSONResponse({"items": found})
        parcels = (await request.json())["parcels"]
        if parcels > 100:
            return _problem(422, "too-large", "100 parcels at most")
        if not found:
            number = f"B/{len(self.bookings) + 1}"
            found = [{"number": number, "reference": reference, "parcels": parcels, "cancelled": False}]
            self.bookings += found
        if self.lost:
            self.lost -= 1
            return _problem(504, "gateway-timeout", "no answer")
        return JSONResponse(found[0], 201)

    async def _cancel(self, request: Request) -> JSONResponse:
        if (refused := self._refused(request)) is not None:
            return refused
        number = request.path_params["number"]
        found = next((b for b in self.bookings if b["number"] == number), None)
        if found is None:
            return _problem(404, "unknown-booking", number)
        if found["cancelled"]:
            return _problem(409, "already-cancelled", number)
        found["cancelled"] = True
        return JSONResponse({})

    def _refused(self, request: Request) -> JSONResponse | None:
        if request.headers.get("authorization") != f"Bearer freight-token-{self.tokens}":
            return _problem(401, "invalid-token", "the token has ended")
        self.allowed -= 1
        if self.allowed < 0:
            self.allowed, self.limited = 1_000, self.limited + 1
            return _problem(429, "rate-limited", "slow down", {"Retry-After": "1"})
        return None


def _problem(status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"type": kind, "title": kind, "detail": detail}, status, headers, "application/problem+json")
