"""The right of an Agent to send requests for one step: the stable key, the fencing token, the time and the calls left.

Repeating a call is safe because every retry of every attempt sends the same key.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx
from pydantic import BaseModel

from activities.clock import uptime
from activities.http import body_of, code_of, exchange, fault_of_answer, fault_of_transport
from domain.faults import OutOfTime, TransientFault, UnknownOutcome
from domain.messages import Json

MARGIN_S = 0.05
"""Kept back from the time left, for the answer to be recorded."""

LEAST_S = 0.05
"""With less time than this left no call is sent."""


@dataclass
class Call:
    """The right to send requests for one step: its key, its token, its allowance, its deadline.

    `deadline` and `since` are on the clock of `uptime`; `left` counts the reservation down. `reads`: whether the step
    declares a result; if it does not, the status of a success is the answer, whatever comes with it.
    """

    base_url: str
    client: httpx.AsyncClient
    key: str
    keys: list[str]
    epoch: int
    deadline: float
    left: int
    since: float
    reads: bool = True
    callback_url: str | None = None
    sent: int = 0
    unknown: bool = False

    @property
    def age_s(self) -> float:
        """Seconds since a call may first have been sent whose effect may stand."""
        return uptime() - self.since

    @property
    def time_left(self) -> float:
        """Seconds until no new side effect may start."""
        return self.deadline - uptime() - MARGIN_S

    async def post(self, path: str, body: BaseModel) -> tuple[int, Json]:
        """Send the request of a step. Returns status and body of a success.

        Raises:
            OutOfTime: Too little time is left; nothing was sent.
            Fault: As sorted in `activities.http`.
        """
        return await self._send(path, body.model_dump(mode="json"), reads=self.reads)

    async def undo(self, path: str, body: BaseModel | None = None) -> None:
        """Send the undo of a step: it names the keys of the original, all generations."""
        more = body.model_dump(mode="json") if body else {}
        await self._send(path, {**more, "keys": self.keys}, reads=False)

    async def ask(self, path: str, unknown: str) -> tuple[int, Json] | None:
        """Ask what became of something; None if the service says 404 with the code `unknown`. Counts as a call.

        Any other 404 is of a gateway or a wrong address, and says nothing.
        """
        response = await self._exchange("GET", path, None, reads=True)
        if response.status_code == httpx.codes.NOT_FOUND and code_of(response) == unknown:
            return None
        fault = fault_of_answer(response)
        if fault is not None:
            raise fault if isinstance(fault, TransientFault) else TransientFault(str(fault))
        return response.status_code, body_of(response)

    async def _send(self, path: str, body: Json, *, reads: bool) -> tuple[int, Json]:
        response = await self._exchange("POST", path, body, reads=reads)
        fault = fault_of_answer(response)
        if fault is not None:
            raise fault
        return response.status_code, body_of(response) if reads else {}

    async def _exchange(self, method: str, path: str, body: Json | None, *, reads: bool) -> httpx.Response:
        if self.time_left < LEAST_S:
            raise OutOfTime(f"{max(0.0, self.time_left):.3f} s left: too little for a call")
        if self.left < 1:
            raise TransientFault("the allowance of calls is spent")
        headers = {
            "Idempotency-Key": self.key,
            "X-Fencing-Token": str(self.epoch),
            "X-Time-Left-Ms": str(int(self.time_left * 1000)),
        }
        limits = httpx.Timeout(self.time_left, connect=self.time_left / 2)  # in time to say that nothing was sent
        request = self.client.build_request(method, self.base_url + path, json=body, headers=headers, timeout=limits)
        self.left -= 1
        self.sent += 1
        try:
            async with asyncio.timeout(self.time_left):
                return await exchange(self.client, request, reads=reads)
        except httpx.HTTPError as error:
            fault = fault_of_transport(error)
            self.sent -= not isinstance(fault, UnknownOutcome)
            raise fault from error
        except TimeoutError as error:
            raise UnknownOutcome("no answer within the time left") from error
