"""A cloud provider: a PUT makes a machine, which takes its time, and can fail on the way; so does a DELETE."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

TOKEN = "cloud-canary-72"


class CloudProvider:
    """Its machines.

    `looks`: how often one is looked at before it runs, or is gone. `fails`: none ever runs.
    """

    def __init__(self) -> None:
        self.machines: dict[str, dict[str, Any]] = {}
        self.made, self.looks, self.fails = 0, 2, False
        self.app = FastAPI()
        self.app.add_route("/machines/{name}", self._machine, methods=["PUT", "GET", "DELETE"])

    async def _machine(self, request: Request) -> JSONResponse:
        if request.headers.get("x-auth-token") != TOKEN:
            return JSONResponse({"error": {"code": "denied", "message": "who are you?"}}, 403)
        name, found = request.path_params["name"], self.machines.get(request.path_params["name"])
        if request.method == "PUT" and found is None:
            self.made += 1
            found = self.machines[name] = {**(await request.json()), "state": "creating", "left": self.looks}
            return JSONResponse(found, 201)
        if found is None:
            return JSONResponse({"error": {"code": "not_found", "message": f"no machine {name}"}}, 404)
        if request.method == "DELETE" and found["state"] != "deleting":
            found |= {"state": "deleting", "left": self.looks}
        return self._looked_at(name, found, request.method)

    def _looked_at(self, name: str, found: dict[str, Any], method: str) -> JSONResponse:
        found["left"] -= 1
        if found["left"] <= 0 and found["state"] == "deleting":
            del self.machines[name]
        elif found["left"] <= 0:
            found |= (
                {"state": "failed", "reason": "no capacity"} if self.fails else {"state": "running", "address": "::1"}
            )
        return JSONResponse(found, 202 if method == "DELETE" else 200)
