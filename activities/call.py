"""The right of an Agent to make calls for one step: the stable key, the fencing token, the time and the calls left.

Repeating a call is safe because every retry of every attempt sends the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypedDict, Unpack

import httpx
from pydantic import BaseModel

from activities.clock import uptime
from activities.http import STAMP, body_of, error_of, exchange, fault_of_answer, fault_of_transport
from activities.meanings import Meanings
from activities.services import Service
from domain.faults import Fault, NoAccess, NotSent, OutOfTime, TransientFault, UnknownOutcome
from domain.messages import Json

if TYPE_CHECKING:  # an Agent's methods take a Call
    from activities.agent import Agent

MARGIN_S = 0.05
"""Kept back from the time left, for the answer to be recorded."""

LEAST_S = 0.05
"""With less time than this left no call is sent."""


class HowSent(TypedDict, total=False):
    """What else can be said of a request; `params`, `headers`, `data` (a form) and `content` (bytes) as in httpx.

    `means`: what its answers mean, over what the Agent says. `reads`: whether the body of a success is read.
    """

    params: Mapping[str, str | int | bool]
    headers: Mapping[str, str]
    data: Mapping[str, str]
    content: bytes
    means: Meanings
    reads: bool


@dataclass(frozen=True)
class Reply:
    """A success: its status, its headers, and its JSON object; the body is empty where it was not read."""

    status: int
    headers: Mapping[str, str]
    body: Json


@dataclass
class Call:
    """The right to make calls for one step: its key, its token, its allowance, its deadline.

    `deadline` and `since` are on the clock of `uptime`; `left` counts the reservation down, and `sent` what of it may
    have had an effect. `keys`: of an undo, the keys of its original, oldest first. `reads`: whether the step declares a
    result; if it does not, the status of a success is the answer, whatever comes with it.
    """

    agent: Agent
    service: Service
    task_id: str
    step: str
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

    @asynccontextmanager
    async def once(self) -> AsyncIterator[float]:
        """One call of the reservation, however it is sent: yields the seconds that it may take.

        Whatever is raised in it leaves the outcome unknown, unless it is a fault that says otherwise: `NotSent` where
        certainly nothing reached the service, `PermanentFault` where it refused.

        Raises:
            OutOfTime, TransientFault: Too little time, or no call is left; nothing is to be sent.
            UnknownOutcome: It took too long.
        """
        if self.time_left < LEAST_S:
            raise OutOfTime(f"{max(0.0, self.time_left):.3f} s left: too little for a call")
        if self.left < 1:
            raise TransientFault("the allowance of calls is spent")
        self.left -= 1
        self.sent += 1
        within_s = min(self.time_left, self.agent.call_within.total_seconds())
        try:
            async with asyncio.timeout(within_s):
                yield within_s
        except (NotSent, NoAccess, OutOfTime):
            self.sent -= 1
            raise
        except TimeoutError as error:
            raise UnknownOutcome("no answer in time") from error

    async def send(self, method: str, path: str, body: BaseModel | None = None, **how: Unpack[HowSent]) -> Reply:
        """Send a request, with `body` as JSON.

        Raises:
            OutOfTime: Too little time is left; nothing was sent.
            Fault: As the answer, or the lack of one, is sorted.
        """
        return await self._send(method, path, _json(body), how)

    async def get(self, path: str, **how: Unpack[HowSent]) -> Reply:
        """GET, with its answer read."""
        how.setdefault("reads", True)
        return await self._send("GET", path, None, how)

    async def post(self, path: str, body: BaseModel | None = None, **how: Unpack[HowSent]) -> Reply:
        """POST."""
        return await self.send("POST", path, body, **how)

    async def put(self, path: str, body: BaseModel | None = None, **how: Unpack[HowSent]) -> Reply:
        """PUT."""
        return await self.send("PUT", path, body, **how)

    async def patch(self, path: str, body: BaseModel | None = None, **how: Unpack[HowSent]) -> Reply:
        """PATCH."""
        return await self.send("PATCH", path, body, **how)

    async def delete(self, path: str, **how: Unpack[HowSent]) -> Reply:
        """DELETE."""
        return await self.send("DELETE", path, **how)

    async def undo(self, path: str, body: BaseModel | None = None) -> None:
        """POST the undo of a step as our own contract has it: it names the keys of the original, all generations."""
        await self._send("POST", path, {**(_json(body) or {}), "keys": self.keys}, {"reads": False})

    async def ask(self, path: str, unknown: str, **how: Unpack[HowSent]) -> Reply | None:
        """Ask what became of something; None if the service says 404 with the code `unknown`. Counts as a call.

        Any other 404 is of a gateway or a wrong address, and says nothing. Of a service that gives its 404 no code,
        `unknown` is `http_404`.
        """
        how.setdefault("reads", True)
        response, fault = await self._exchange("GET", path, None, how)
        if response.status_code == httpx.codes.NOT_FOUND and error_of(response, self.agent.error_in)[0] == unknown:
            return None
        if fault is not None:
            raise fault if isinstance(fault, TransientFault) else TransientFault(str(fault))
        return Reply(response.status_code, response.headers, body_of(response))

    async def _send(self, method: str, path: str, json: Json | None, how: HowSent) -> Reply:
        response, fault = await self._exchange(method, path, json, how)
        if fault is not None:
            raise fault
        reads = how.get("reads", self.reads)
        return Reply(response.status_code, response.headers, body_of(response) if reads else {})

    async def _exchange(
        self, method: str, path: str, json: Json | None, how: HowSent
    ) -> tuple[httpx.Response, Fault | None]:
        """Send one request; returns its answer, and the fault that it stands for."""
        if not path.startswith("/"):
            raise ValueError(f"the path {path!r} must begin with /")
        async with self.once() as within_s:
            client = self.service.client()
            request = client.build_request(
                method,
                self.service.url + path,
                json=json,
                params=how.get("params"),
                data=how.get("data"),
                content=how.get("content"),
                headers={**self._headers(), **how.get("headers", {})},
                extensions={STAMP: partial(self._stamp, uptime() + within_s)},
                timeout=httpx.Timeout(within_s, connect=within_s / 2),  # in time to say that nothing was sent
            )
            try:
                response = await exchange(client, request, reads=how.get("reads", self.reads))
            except httpx.HTTPError as error:
                raise fault_of_transport(error) from error
            fault = fault_of_answer(response, how.get("means", {}), self.agent.means, reader=self.agent.error_in)
            if isinstance(fault, NoAccess):
                raise fault
        return response, fault

    def _headers(self) -> dict[str, str]:
        own = {self.agent.key_header: self.key, self.agent.fence_header: str(self.epoch)}
        return {**self.agent.headers, **{name: value for name, value in own.items() if name}}

    def _stamp(self, until: float, request: httpx.Request) -> None:
        """Say how much time is left as the request is sent: to authenticate it may have taken some."""
        left_s = until - uptime()
        if left_s < LEAST_S:
            raise OutOfTime(f"{max(0.0, left_s):.3f} s left: too little for a call")
        if self.agent.time_left_header:
            request.headers[self.agent.time_left_header] = str(int(left_s * 1000))


def _json(body: BaseModel | None) -> Json | None:
    return None if body is None else body.model_dump(mode="json")
