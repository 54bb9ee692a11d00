"""A card processor: forms, a bearer token, and keys whose first answer is repeated for a day, be it an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

TOKEN = "sk-canary-71"
Form = dict[str, str]
Handler = Callable[[Form], tuple[int, Any]]


class CardProcessor:
    """Its charges and refunds.

    Attributes:
        saved_500: So many next charges are made, and answered with a 500 that is saved for their key.
        lost: So many next answers to charges are lost on the way. delay_s: Time that a charge takes.
    """

    def __init__(self) -> None:
        self.charges: dict[str, dict[str, Any]] = {}
        self.refunds: list[str] = []
        self.saved_500, self.lost, self.delay_s = 0, 0, 0.0
        self._keys: dict[str, tuple[Form, tuple[int, Any] | None]] = {}
        self.app = FastAPI()
        self.app.add_route("/v1/charges", self._keyed(self._charge), methods=["POST"])
        self.app.add_route("/v1/refunds", self._keyed(self._refund), methods=["POST"])
        self.app.add_route("/v1/charges/search", self._search, methods=["GET"])

    @property
    def standing(self) -> list[str]:
        """Charges that are not refunded."""
        return [charge for charge in self.charges if charge not in self.refunds]

    def forget_keys(self) -> None:
        """A day has passed."""
        self._keys.clear()

    def _charge(self, form: Form) -> tuple[int, Any]:
        if form["source"] == "tok_declined":
            return 402, _error("card_declined", "Your card was declined.")
        charge_id = f"ch_{len(self.charges) + 1}"
        self.charges[charge_id] = {"id": charge_id, "amount": int(form["amount"]), "key": form["metadata[key]"]}
        if self.saved_500:
            self.saved_500 -= 1
            return 500, _error("api_error", "Something went wrong on our end.")
        return 200, self.charges[charge_id]

    def _refund(self, form: Form) -> tuple[int, Any]:
        if form["charge"] not in self.charges:
            return 404, _error("resource_missing", f"No such charge: {form['charge']}")
        if form["charge"] in self.refunds:
            return 400, _error("charge_already_refunded", "Charge has already been refunded.")
        self.refunds.append(form["charge"])
        return 200, {"id": f"re_{len(self.refunds)}"}

    async def _search(self, request: Request) -> JSONResponse:
        if not _is_known(request):
            return _turned_away(request)
        key = request.query_params["query"].removeprefix("metadata['key']:'").removesuffix("'")
        return JSONResponse({"data": [c for c in self.charges.values() if c["key"] == key]})

    def _keyed(self, handle: Handler) -> Callable[[Request], Coroutine[Any, Any, JSONResponse]]:
        async def answer(request: Request) -> JSONResponse:
            if not _is_known(request):
                return _turned_away(request)
            key, form = request.headers["idempotency-key"], dict(parse_qsl((await request.body()).decode()))
            before, saved = self._keys.setdefault(key, (form, None))
            if before != form:
                return JSONResponse(_error("idempotency_error", "Keys can only be used with the same parameters."), 400)
            if saved is None and before is not form:
                return JSONResponse(_error("idempotency_key_in_use", "Another request is at work."), 409)
            if saved is None:
                await asyncio.sleep(self.delay_s)
                saved = handle(form)
                self._keys[key] = form, saved
            if self.lost:
                self.lost -= 1
                return JSONResponse(_error("bad_gateway", ""), 502)
            return JSONResponse(saved[1], saved[0])

        return answer


def _is_known(request: Request) -> bool:
    return request.headers.get("authorization") == f"Bearer {TOKEN}"


def _turned_away(request: Request) -> JSONResponse:
    """It quotes what it was given, as some do."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return JSONResponse(_error("unauthorized", f"Invalid API Key provided: {given}"), 401)


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"type": "error", "code": code, "message": message}}
