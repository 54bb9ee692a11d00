"""The callbacks endpoint reads nothing of a forged call, and of a signed one a bounded body in bounded time."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from runtime import callbacks
from runtime.embedded.postgres import EmbeddedPostgres
from runtime.roles import Role, callback_addresses
from runtime.settings import Settings
from tests.acceptance.test_outages import store_away
from tests.conftest import PATIENCE_S, Bench, Databases
from tests.failures.test_security import ANSWER, rows


async def half_sent(address: str, length: int) -> int:
    """Status of a call that promises a body of this length, and sends one byte of it."""
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"POST {parts.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{{"
    writer.write(head.encode())
    status = await asyncio.wait_for(reader.readline(), PATIENCE_S)
    writer.close()
    return int(status.split()[1])


@pytest.fixture
async def address(bench: Bench, settings: Settings, machine: dict[str, Any], task_id: str) -> str:
    """Where the step of a task is answered."""
    await bench.submit(machine, task_id, "provisioning")
    return callback_addresses(settings).address(f"{task_id}:machine:0")


async def test_forged_call_is_refused_before_its_body_is_read(bench: Bench, settings: Settings, address: str) -> None:
    signature = address.rsplit("/", 2)[1]
    async with bench.worker(Role.CALLBACKS):
        assert await half_sent(address.replace(signature, "0" * 32), 10**9) == 403
        assert await half_sent(address.replace(signature, "%C3%BC"), 10**9) == 403


async def test_endpoint_answers_hostile_requests_in_json_and_sets_nothing(
    bench: Bench, settings: Settings, address: str
) -> None:
    script = "<script>alert(1)<script>"
    browser = httpx.AsyncClient(base_url=settings.callback_url, headers={"Origin": "http://elsewhere.example"})
    async with bench.worker(Role.CALLBACKS), browser as http:
        answers = {
            await http.get(f"/{script}"): 404,
            await http.get("/docs"): 404,
            await http.options(address): 405,
            await http.post(f"/callbacks/{script}/{script}", json=ANSWER): 403,
            await http.post(address, content=script): 422,
            await http.post(address, json={**ANSWER, "status": script}): 422,
        }
    assert [a.status_code for a in answers] == list(answers.values())
    assert {a.headers["content-type"] for a in answers} == {"application/json"}
    assert not [a for a in answers if {"set-cookie", "access-control-allow-origin"} & set(a.headers)]


async def test_body_that_is_too_large_or_too_slow_is_refused_and_kept_nowhere(
    bench: Bench, databases: Databases, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "_BODY_WITHIN_S", 0.2)
    large = json.dumps({**ANSWER, "message": "x" * 300_000})
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(address, content=large)).status_code == 413
        assert await half_sent(address, 100) == 408
    assert rows(databases.owner, "inbox") == ""


async def test_answer_with_what_postgresql_can_not_store_is_kept_without_it(
    bench: Bench, databases: Databases, address: str
) -> None:
    failed = {"response_id": "a\x00b", "status": "failed", "code": "no\x00", "message": "\x00"}
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.post(address, json=failed)).status_code == 204
    assert "ab" in rows(databases.owner, "inbox")


async def test_answer_that_comes_while_the_store_is_away_is_asked_for_again(
    bench: Bench, templates: EmbeddedPostgres, databases: Databases, address: str
) -> None:
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient(timeout=30) as http:
        with store_away(templates, databases):
            answer = await http.post(address, json=ANSWER)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert (await http.post(address, json=ANSWER)).status_code == 204
