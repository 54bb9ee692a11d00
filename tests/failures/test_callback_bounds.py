"""The callbacks endpoint reads nothing of a forged call, and of a signed one a bounded body in bounded time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from devstack.servers.postgres import EmbeddedPostgres
from runtime.callbacks import answers, guard
from runtime.callbacks.addresses import callback_addresses
from runtime.roles import Role
from runtime.settings import Settings
from testing.bench import Bench
from testing.databases import Databases
from testing.waiting import PATIENCE_S
from tests.acceptance.test_outages import away
from tests.failures.test_security import ANSWER, rows


async def half_sent(address: str, length: int) -> int:
    """Status of a call that promises a body of this length, and sends one byte of it."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{{"
    writer.write(head.encode())
    async with asyncio.timeout(PATIENCE_S):
        status = await reader.readline()
    writer.close()
    return int(status.split()[1])


@pytest.fixture
async def address(bench: Bench, settings: Settings, machine: dict[str, Any], task_id: str) -> str:
    """Where the step of a task is answered."""
    await bench.submit(machine, task_id, "provisioning")
    return callback_addresses(settings).address(f"{task_id}:machine:0")


@pytest.mark.failure(113)
async def test_forged_call_is_refused_before_its_body_is_read(bench: Bench, settings: Settings, address: str) -> None:
    signature = address.rsplit("/", 2)[1]
    async with bench.worker(Role.CALLBACKS):
        assert await half_sent(address.replace(signature, "0" * 32), 10**9) == 403
        assert await half_sent(address.replace(signature, "%C3%BC"), 10**9) == 403


@pytest.mark.failure(109)
async def test_endpoint_answers_hostile_requests_in_json_and_sets_nothing(
    bench: Bench, settings: Settings, address: str
) -> None:
    script = "<script>alert(1)<script>"
    browser = httpx.AsyncClient(base_url=settings.callback_url, headers={"Origin": "http://elsewhere.example"})
    async with bench.worker(Role.CALLBACKS), browser as http:
        statuses = {
            await http.get(f"/{script}"): 404,
            await http.get("/docs"): 404,
            await http.options(address): 405,
            await http.post(f"/callbacks/{script}/{script}", json=ANSWER): 403,
            await http.post(address, content=script): 422,
            await http.post(address, json={**ANSWER, "status": script}): 422,
        }
    assert [a.status_code for a in statuses] == list(statuses.values())
    assert {a.headers["content-type"] for a in statuses} == {"application/json"}
    assert not [a for a in statuses if {"set-cookie", "access-control-allow-origin"} & set(a.headers)]


@pytest.mark.failure(113)
async def test_body_too_large_or_too_slow_is_refused_and_kept_nowhere(
    bench: Bench, databases: Databases, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_BODY_WITHIN_S", 0.2)
    large = json.dumps({**ANSWER, "message": "x" * 300_000})
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(address, content=large)).status_code == 413
        assert await half_sent(address, 100) == 408
    assert rows(databases.owner, "inbox") == ""


@pytest.mark.failure(113)
async def test_answer_with_what_postgresql_can_not_store_is_kept_without_it(
    bench: Bench, databases: Databases, address: str
) -> None:
    failed = {"response_id": "a\x00b", "status": "failed", "code": "no\x00", "message": "\x00"}
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(address, json=failed)).status_code == 204
    assert "ab" in rows(databases.owner, "inbox")


@pytest.mark.failure(113)
async def test_answer_that_finds_no_store_is_asked_for_again(
    bench: Bench, templates: EmbeddedPostgres, databases: Databases, address: str
) -> None:
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient(timeout=30) as http:
        with away(templates, databases.owner):
            answer = await http.post(address, json=ANSWER)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert (await http.post(address, json=ANSWER)).status_code == 204


@asynccontextmanager
async def half_a_head(settings: Settings, *, before: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    """What is heard on a connection that sends a request, if one is given, and then half the head of another."""
    reader, writer = await asyncio.open_connection(settings.callback_host, settings.callback_port)
    writer.write(before + b"POST /callbacks/x HTTP/1.1\r\nHost: ")
    try:
        yield reader
    finally:
        writer.close()


async def heard(reader: asyncio.StreamReader) -> bytes:
    """All that is heard until the other end closes."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := await reader.read(1024):
            found += piece
    return found


@pytest.mark.failure(114)
async def test_half_sent_heads_are_closed_when_their_time_is_over(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "HEAD_WITHIN_S", 0.5)
    whole = b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n"
    async with bench.worker(Role.CALLBACKS), AsyncExitStack() as stack, asyncio.timeout(10):
        opened = [await stack.enter_async_context(half_a_head(settings)) for _ in range(50)]
        after_one = await stack.enter_async_context(half_a_head(settings, before=whole))
        assert [await heard(reader) for reader in opened] == [b""] * 50
        assert (await heard(after_one)).startswith(b"HTTP/1.1 200")


@pytest.mark.failure(114)
async def test_connection_beyond_the_cap_is_told_to_come_again(
    bench: Bench, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        monkeypatch.setattr(guard, "MOST_CONNECTIONS", 1)
        async with half_a_head(settings):
            answer = await http.get(f"{settings.callback_url}/health")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")


@pytest.mark.failure(114)
async def test_words_of_an_answer_are_kept_shortened(bench: Bench, databases: Databases, address: str) -> None:
    failed = {"response_id": "r", "status": "failed", "code": "c" * 100_000, "message": "m" * 100_000}
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(address, json=failed)).status_code == 204
    kept = rows(databases.owner, "inbox", "event")
    assert ("c" * 100 in kept, "c" * 101 in kept) == (True, False)
    assert ("m" * 500 in kept, "m" * 501 in kept) == (True, False)


@pytest.mark.failure(114)
@pytest.mark.parametrize(
    "key", ["x", "a:b", "a:machine", ":::", ":machine:0", "a b:machine:0", "\x00:machine:0", "\u00fc:x:0"]
)
async def test_signed_key_that_is_none_is_refused(bench: Bench, settings: Settings, key: str) -> None:
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(callback_addresses(settings).address(key), json=ANSWER)).status_code == 404


@pytest.mark.failure(114)
@pytest.mark.parametrize(
    "body",
    [
        b'{"response_id": "r", "status": "failed", "status": "done", "result": {"machine_id": "m", "ip": "::1"}}',
        b'{"response_id": "r", "status": "done", "result": {"machine_id": "m", "ip": "::1", "ip": "::2"}}',
        b'{"response_id": "r", "status": "done", "result": {"machine_id": "m", "ip": "::1", "price": NaN}}',
        b'{"response_id": "r", "status": "done", "result": {"machine_id": "m", "ip": "::1", "price": -Infinity}}',
        b'{"response_id": "r", "status": "done", "result": {"machine_id": "m", "ip": "::1", "price": [1e999]}}',
    ],
    ids=["a key twice", "a key twice, inside", "not a number", "infinite", "too large"],
)
async def test_ambiguous_answer_is_refused_in_words_and_kept_nowhere(
    bench: Bench, databases: Databases, address: str, body: bytes
) -> None:
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        answer = await http.post(address, content=body)
    assert answer.status_code == 400
    assert any(word in answer.json()["detail"] for word in ("given twice", "no number", "too large"))
    assert rows(databases.owner, "inbox") == ""


@pytest.mark.failure(107)
@pytest.mark.demand("C11")
async def test_address_signed_with_the_previous_secret_counts_until_its_removal(
    bench: Bench, settings: Settings, address: str
) -> None:
    new = {"callback_secret": SecretStr("n" * 32)}
    both = settings.model_copy(update={**new, "callback_secret_previous": settings.callback_secret})
    fresh = callback_addresses(both).address(address.rsplit("/", 1)[1].replace("%3A", ":"))
    async with httpx.AsyncClient() as http:
        async with bench.worker(Role.CALLBACKS, settings=both):
            assert [(await http.post(a, json=ANSWER)).status_code for a in (address, fresh)] == [204, 204]
        async with bench.worker(Role.CALLBACKS, settings=settings.model_copy(update=new)):
            assert [(await http.post(a, json=ANSWER)).status_code for a in (address, fresh)] == [403, 204]
