"""What an Agent makes of a service's answers, and of its own mistakes: real HTTP, a scripted service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from activities.agent import Agent, action
from activities.agents import all_agents
from activities.agents.payments import Charge, Charged, Refund
from activities.call import Call
from activities.call_loop import Agents
from activities.clock import uptime
from activities.http import MOST_BYTES
from domain.messages import AgentRequest, Completed, Failed, GaveUp, Outcome, StoodDown

CHARGED = b'{"charge_id": "ch-1"}'
UNREADABLE = {
    "no number": b'{"charge_id": "ch-1", "fee": NaN}',
    "infinite": b'{"charge_id": "ch-1", "fee": -Infinity}',
    "too large": b'{"charge_id": "ch-1", "fee": 1e999}',
    "thousands of digits": b'{"charge_id": "ch-1", "fee": ' + b"9" * 5000 + b"}",
    "said twice": b'{"charge_id": "ch-1", "charge_id": "ch-2"}',
    "nested": b'{"charge_id": "ch-1", "fee": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "nested less": b'{"charge_id": "ch-1", "fee": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "no JSON": b"<html>ch-1</html>",
    "empty": b"",
    "no object": b'["ch-1"]',
    "no text": b"\xff\xfe\x00",
    "another shape": b'{"id": "ch-1"}',
}


class Fee(BaseModel):
    """What was taken; an Agent that reads it by itself lets anything be a number."""

    fee: float
    more: dict[str, float] = {}


@dataclass
class Service:
    """A service that answers every request alike. `received`: the first line of each."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[str]:
        """Its address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received.append((await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")[0])
        lines = [f"HTTP/1.1 {self.status} Words", "Connection: close", f"Content-Length: {len(self.body)}"]
        lines += [f"{k}: {v}" for k, v in self.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + self.body)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()


async def asked(
    service: Service | str,
    *,
    undo: bool = False,
    agents: list[type[Agent]] | None = None,
    name: str = "payments.charge",
    body: dict[str, Any] | None = None,
    calls: int = 2,
    within_s: float = 5.0,
) -> Outcome:
    """What an Agent makes of a service, or of what is at an address."""
    request = AgentRequest(
        task_id="t",
        step="charge",
        action="payments.refund" if undo else name,
        body=body or {"amount_minor": 1, "currency": "EUR", "card_token": "tok"},
        keys=["t:charge:0"],
        epoch=3,
        calls=calls,
        run_id="run",
        undo=undo,
    )
    async with (
        nullcontext(service) if isinstance(service, str) else service.at_work() as url,
        Agents(agents or list(all_agents()), {"payments": url}) as known,
    ):
        return await known.carry_out(request, uptime() + within_s)


@pytest.mark.failure(28)
@pytest.mark.demand("C5")
@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
async def test_ambiguous_success_has_an_unknown_outcome_and_says_why(
    content: bytes,
) -> None:
    service = Service(200, content)
    outcome = await asked(service)
    assert isinstance(outcome, GaveUp)
    assert (outcome.unknown, outcome.sent) == (True, 2)
    assert "200 with an answer that can't be read" in outcome.cause or "Field required" in outcome.cause
    assert json.loads(outcome.model_dump_json())


@pytest.mark.demand("C5")
@pytest.mark.parametrize(("text", "kept"), [("ch\\u0000-1", "ch-1"), ("ch-\\ud800", "ch-?"), ("\\ud83d\\ude00", "😀")])
async def test_text_in_an_answer_that_no_store_takes_is_cleaned(text: str, kept: str) -> None:
    outcome = await asked(Service(200, f'{{"charge_id": "{text}"}}'.encode()))
    assert outcome == Completed(result={"charge_id": kept}, calls=1)


@pytest.mark.failure(29)
@pytest.mark.demand("C5", "F2")
@pytest.mark.parametrize("status", [200, 201, 202, 204])
@pytest.mark.parametrize("content", [*UNREADABLE.values(), b"x" * (MOST_BYTES + 1)], ids=[*UNREADABLE, "too long"])
async def test_undo_is_believed_by_its_status_whatever_comes_with_it(status: int, content: bytes) -> None:
    service = Service(status, b"" if status == 204 else content)
    assert await asked(service, undo=True) == Completed(result={}, calls=1)


@pytest.mark.failure(29)
@pytest.mark.demand("C5")
async def test_action_without_a_result_is_believed_by_its_status_too() -> None:
    class Quiet(Agent):
        service = "payments"

        @action
        async def charge(self, call: Call, request: Charge) -> None:
            await call.post("/charges", request)

    assert await asked(Service(200, b"<html>"), agents=[Quiet]) == Completed(result={}, calls=1)


@pytest.mark.failure(28)
@pytest.mark.demand("C5")
@pytest.mark.parametrize(("status", "kind"), [(402, Failed), (503, GaveUp), (500, GaveUp)])
@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
async def test_fault_with_an_unreadable_body_is_sorted_by_status(
    status: int, kind: type[Outcome], content: bytes
) -> None:
    assert isinstance(await asked(Service(status, content)), kind)


@pytest.mark.failure(21)
@pytest.mark.demand("C5")
@pytest.mark.parametrize(("length", "kept"), [(1, True), (200_000, True), (300_000, False), (5_000_000, False)])
async def test_answer_too_long_to_keep_is_a_permanent_fault(length: int, kept: bool) -> None:
    """A service that does what it is asked and answers with a very long id."""
    service = Service(201, json.dumps({"charge_id": "x" * length}).encode())
    outcome = await asked(service)
    assert len(service.received) == 1
    if kept:
        assert isinstance(outcome, Completed)
        assert len(outcome.result["charge_id"]) == length
    else:
        assert isinstance(outcome, Failed)
        assert (outcome.code, outcome.unknown_before) == ("answer_too_long", True)


@pytest.mark.failure(28)
@pytest.mark.demand("C5")
@pytest.mark.parametrize("value", ['"NaN"', "NaN", '"Infinity"'])
async def test_result_that_json_can_not_say_is_no_result(value: str) -> None:
    """A text becomes a number where the result's model says so."""

    class Dear(Agent):
        service = "payments"

        @action
        async def charge(self, call: Call, request: Charge) -> Fee:
            await call.post("/charges", request)
            return Fee.model_validate_json(f'{{"fee": 1, "more": {{"a": {value}}}}}')

    outcome = await asked(Service(200, b"{}"), agents=[Dear])
    assert isinstance(outcome, GaveUp)
    assert outcome.unknown
    assert "more.a: NaN is no number of JSON" in outcome.cause or "more.a: Infinity" in outcome.cause


# --- the Agent's own mistakes ---------------------------------------------------------------------------------


class NotFoundError(Exception):
    """Named as the SDK's own error for an action that a worker does not have."""


class Buggy(Agent):
    """Fails after its call, or before it."""

    service = "payments"
    before: ClassVar[bool] = False

    @action
    async def charge(self, call: Call, request: Charge) -> Charged:
        """Never returns."""
        if not self.before:
            await call.post("/charges", request)
        raise NotFoundError("Activity function payments.charge for workflow x is not registered on this worker")

    @action
    async def refund(self, call: Call, request: Refund) -> None:
        """Never returns."""
        await call.undo("/refunds", request)
        raise KeyError(request.currency)


class BuggyBefore(Buggy):
    """Fails before its call."""

    before = True


@pytest.mark.failure(30)
@pytest.mark.demand("C5")
@pytest.mark.parametrize("undo", [False, True])
async def test_exception_after_the_call_is_an_unknown_outcome_with_its_text(undo: bool) -> None:
    outcome = await asked(Service(200, CHARGED), agents=[Buggy], undo=undo)
    assert isinstance(outcome, GaveUp)
    assert (outcome.unknown, outcome.sent) == (True, 2)
    assert ("KeyError: 'EUR'" if undo else "NotFoundError: Activity function payments.charge") in outcome.cause


@pytest.mark.failure(30)
@pytest.mark.demand("C5")
async def test_exception_before_the_first_call_costs_nothing_and_is_an_alert() -> None:
    service = Service(200, CHARGED)
    outcome = await asked(service, agents=[BuggyBefore])
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.lacking, service.received) == (0, "payments.charge", [])
    assert "NotFoundError: Activity function payments.charge" in outcome.cause


@pytest.mark.failure(30)
@pytest.mark.demand("C5")
async def test_unreadable_request_costs_an_agent_nothing_but_an_alert() -> None:
    service = Service(200, CHARGED)
    outcome = await asked(service, body={"amount": 1})
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.lacking, service.received) == (0, "payments.charge", [])


@pytest.mark.failure(78)
@pytest.mark.demand("C5", "C8")
@pytest.mark.parametrize("undo", [False, True])
async def test_unreachable_service_costs_nothing_and_its_breaker_knows(undo: bool) -> None:
    async with Service(200, CHARGED).at_work() as url:
        gone = url
    outcome = await asked(gone, undo=undo)
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.unreachable, outcome.lacking) == (0, True, "")
    assert outcome.retry_after_s > 0
    assert outcome.cause.startswith("service payments: ConnectError")


# --- Retry-After ----------------------------------------------------------------------------------------------


@pytest.mark.failure(72)
@pytest.mark.demand("C5", "D6")
@pytest.mark.parametrize(
    ("value", "pause_s"),
    [
        ("3600", 3600),
        ("86400", 86_400),
        ("9" * 400, 86_400),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86_400),
        ("-5", 0),
        ("soon", 0),
    ],
)
async def test_retry_after_outlives_the_attempt_and_costs_one_call(value: str, pause_s: int) -> None:
    service = Service(503, b"", {"Retry-After": value})
    outcome = await asked(service, calls=3 if pause_s else 1)
    assert isinstance(outcome, GaveUp)
    assert (outcome.sent, outcome.retry_after_s, outcome.unknown) == (1, pause_s, False)


@pytest.mark.failure(29)
@pytest.mark.demand("C5")
async def test_202_needs_no_body_as_the_answer_is_to_come() -> None:
    class Patient(Agent):
        service = "payments"

        @action
        async def charge(self, call: Call, request: Charge) -> Charged:
            reply = await call.post("/charges", request)
            return Charged(charge_id=f"{reply.status} {reply.body}")

    assert await asked(Service(202, b""), agents=[Patient]) == Completed(result={"charge_id": "202 {}"}, calls=1)
