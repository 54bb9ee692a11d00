"""What a call sends, and what its answers mean: real HTTP, a service that tells what it has received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from activities.agent import Agent, action
from activities.call import Call
from activities.meanings import Meaning
from domain.faults import NotSent, PermanentFault
from domain.messages import Completed, Failed, GaveUp, Json, Outcome, StoodDown
from testing.served import served
from tests.integration.asked import ask


class Thing(BaseModel):
    """What is sent as JSON."""

    size: int = 1


class Seen(BaseModel):
    """What the service has received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    content: str


class Mirror(Agent):
    """A service that answers with what it was sent, by headers of its own names."""

    service = "mirror"
    headers = {"X-Api-Version": "2026-01"}  # noqa: RUF012 (declared as a ClassVar by Agent)
    key_header = "X-Request-Id"
    fence_header = ""
    time_left_header = "X-Budget-Ms"

    @action
    async def put(self, call: Call, request: Thing) -> Seen:
        """JSON, with a query and a header more."""
        reply = await call.put("/things/1", request, params={"dry": True, "n": 2}, headers={"If-None-Match": "*"})
        return Seen.model_validate(reply.body)

    @action
    async def form(self, call: Call) -> Seen:
        """A form."""
        return Seen.model_validate((await call.post("/form", data={"a": "1 2", "b": "ä"})).body)

    @action
    async def raw(self, call: Call) -> Seen:
        """Bytes."""
        how = {"Content-Type": "text/csv"}
        return Seen.model_validate((await call.patch("/raw", content=b"a,b", headers=how)).body)

    @action
    async def remove(self, call: Call) -> Seen:
        """Two calls: a question, then a DELETE whose answer is read."""
        await call.get("/things/1")
        return Seen.model_validate((await call.delete("/things/1")).body)

    @action
    async def elsewhere(self, call: Call) -> None:
        """A path that would make another host of the address."""
        await call.post("@evil.example/", Thing())


async def mirror(request: Request) -> JSONResponse:
    """Answers with what was sent."""
    content = (await request.body()).decode()
    query, headers = dict(request.query_params), dict(request.headers)
    seen = {"method": request.method, "path": request.url.path, "query": query, "headers": headers, "content": content}
    return JSONResponse(seen)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """The service."""
    app = FastAPI()
    app.add_route("/{path:path}", mirror, methods=["GET", "PUT", "POST", "PATCH", "DELETE"])
    async with served(app) as address:
        yield f"{address}/base"


async def seen(url: str, name: str, **more: Any) -> tuple[Seen, int | None]:
    """What the service has received last, and how many calls were made."""
    outcome = await ask(Mirror, url, name, **more)
    assert isinstance(outcome, Completed), outcome
    return Seen.model_validate(outcome.result), outcome.calls


@pytest.mark.demand("C1", "C2")
async def test_call_sends_any_method_query_and_header(url: str) -> None:
    found, calls = await seen(url, "put", body={"size": 3})
    assert (found.method, found.path, found.query) == ("PUT", "/base/things/1", {"dry": "true", "n": "2"})
    assert found.content == '{"size":3}'
    assert (found.headers["if-none-match"], found.headers["x-api-version"], calls) == ("*", "2026-01", 1)


@pytest.mark.demand("C2", "C3")
async def test_names_of_key_and_time_left_are_the_agents_own(url: str) -> None:
    found, _ = await seen(url, "put", body={"size": 3})
    assert found.headers["x-request-id"] == "t:s:0"
    assert 0 < int(found.headers["x-budget-ms"]) < 5_000
    assert not {"idempotency-key", "x-fencing-token", "x-time-left-ms"} & found.headers.keys()


@pytest.mark.demand("C1")
async def test_call_sends_forms_and_bytes(url: str) -> None:
    form, _ = await seen(url, "form")
    assert (form.content, form.headers["content-type"]) == ("a=1+2&b=%C3%A4", "application/x-www-form-urlencoded")
    raw, _ = await seen(url, "raw")
    assert (raw.method, raw.content, raw.headers["content-type"]) == ("PATCH", "a,b", "text/csv")


@pytest.mark.demand("B6", "E1")
async def test_each_request_of_an_action_is_one_call_of_the_allowance(url: str) -> None:
    assert (await seen(url, "remove"))[1] == 2
    outcome = await ask(Mirror, url, "remove", calls=1)
    assert isinstance(outcome, GaveUp)
    assert (outcome.sent, outcome.cause) == (1, "no call is left after 1, last: the allowance of calls is spent")


@pytest.mark.demand("H5")
async def test_path_never_leads_to_another_host(url: str) -> None:
    outcome = await ask(Mirror, url, "elsewhere")
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, "must begin with /" in outcome.cause) == (0, True)


# --- what answers mean ----------------------------------------------------------------------------------------


class Odd(Agent):
    """A service with meanings and errors of its own."""

    service = "odd"
    means = {402: Meaning.TRANSIENT, "busy": Meaning.AT_WORK, 202: Meaning.AT_WORK, 500: Meaning.PERMANENT}  # noqa: RUF012 (as above)

    def error_in(self, body: Json) -> tuple[str, str]:
        """`{"reason": …, "detail": …}`."""
        return body["reason"], body["detail"]

    @action
    async def do(self, call: Call) -> None:
        """Do it."""
        await call.post("/do")

    @action
    async def remove(self, call: Call) -> None:
        """Remove it; what is gone is removed."""
        await call.delete("/do", means={404: Meaning.SUCCESS})


async def odd(name: str, *answers: tuple[int, Any], **more: Any) -> Outcome:
    """What the Agent makes of a service that gives these answers, the last one for ever."""
    left = list(answers)
    app = FastAPI()

    async def answer(_: Request) -> JSONResponse:
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return JSONResponse(body, status)

    app.add_route("/do", answer, methods=["POST", "DELETE"])
    async with served(app) as url:
        return await ask(Odd, url, name, **more)


@pytest.mark.demand("C5")
@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ([(200, {})], 1),
        ([(402, {}), (201, {})], 2),
        ([(409, {"reason": "busy", "detail": ""}), (200, {})], 2),
        ([(202, {}), (202, {}), (200, {})], 3),
    ],
    ids=["success", "transient by status", "at work by code", "a success that is none yet"],
)
async def test_agents_own_table_says_what_an_answer_means(answers: list[tuple[int, Any]], calls: int) -> None:
    assert await odd("do", *answers) == Completed(result={}, calls=calls)


@pytest.mark.demand("C5")
async def test_agent_says_where_code_and_message_stand() -> None:
    outcome = await odd("do", (500, {"reason": "no_stock", "detail": "none is left"}))
    assert outcome == Failed(code="no_stock", message="500 no_stock: none is left", unknown_before=False)


@pytest.mark.demand("C5")
async def test_one_request_may_say_what_its_answers_mean() -> None:
    assert await odd("remove", (404, {})) == Completed(result={}, calls=1)
    assert isinstance(await odd("do", (404, {})), Failed)


# --- Agents that are not HTTP ---------------------------------------------------------------------------------


class Bell(Agent):
    """Something that is rung by a client library of its own."""

    service = "bell"
    over_http = False
    needs = ("rope",)
    call_within = timedelta(milliseconds=200)
    rung: list[str] = []  # noqa: RUF012 (a service has one memory)

    @action
    async def ring(self, call: Call, request: Thing) -> None:
        """Ring it; of size 2 nothing is sent, of size 3 it breaks, of size 4 it hangs, of size 5 it refuses."""
        async with call.once() as left_s:
            assert 0 < left_s <= 0.2
            match request.size:
                case 2:
                    raise NotSent("the rope is not there")
                case 3:
                    raise BrokenPipeError
                case 4:
                    await asyncio.sleep(5)
                case 5:
                    raise PermanentFault("cracked", "the bell is cracked")
            self.rung.append(f"{call.key} {call.epoch} {call.service.credentials['rope']}")


@pytest.mark.demand("C1", "E1")
async def test_agent_need_not_be_http() -> None:
    Bell.rung.clear()
    outcome = await ask(Bell, "", "ring", body={}, access={"rope": "hemp"})
    assert (outcome, Bell.rung) == (Completed(result={}, calls=1), ["t:s:0 3 hemp"])


@pytest.mark.demand("C5", "E1")
@pytest.mark.parametrize(
    ("size", "kind", "sent", "unknown"),
    [(2, StoodDown, 0, None), (3, GaveUp, 3, True), (4, GaveUp, 3, True), (5, Failed, None, None)],
    ids=["not sent", "broken", "too slow", "refused"],
)
async def test_fault_of_a_call_that_is_not_http_is_sorted_too(
    size: int, kind: type[Outcome], sent: int | None, unknown: bool | None
) -> None:
    outcome = await ask(Bell, "", "ring", body={"size": size}, access={"rope": "hemp"})
    assert isinstance(outcome, kind), outcome
    assert (getattr(outcome, "sent", None), getattr(outcome, "unknown", None)) == (sent, unknown)


@pytest.mark.failure(17)
@pytest.mark.demand("C3")
async def test_call_without_http_begins_nothing_after_its_time() -> None:
    Bell.rung.clear()
    outcome = await ask(Bell, "", "ring", within_s=0.05, access={"rope": "hemp"})
    assert (type(outcome), Bell.rung) == (StoodDown, [])
