"""A stack in this process: ports that somebody takes between the choice and the bind, and data that is to last."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from devstack.processes.ports import LOOPBACK, free_port
from devstack.servers.postgres import EmbeddedPostgres
from devstack.stack import embedded as module
from devstack.stack.embedded import CALLBACK_PORT, SIMULATORS_PORT, EmbeddedStack
from domain.faults import Conflict

pytestmark = pytest.mark.timeout(180)
_HEALTHY = b'{"status": "ok", "role": "callbacks"}'


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack leaves the shell behind; this process has other tests to run."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@asynccontextmanager
async def stranger() -> AsyncIterator[int]:
    """Somebody who is healthy, whatever is asked; the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(_HEALTHY), _HEALTHY))
        writer.close()

    async with await asyncio.start_server(answer, LOOPBACK, 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.failure(99)
@pytest.mark.parametrize("preferred", [SIMULATORS_PORT, CALLBACK_PORT], ids=["services", "callbacks"])
async def test_port_that_a_healthy_stranger_took_meanwhile_is_replaced(
    preferred: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = EmbeddedStack(tmp_path / "state", workers=1, disposable=True)
    async with stranger() as taken:
        offered = {preferred: [taken]}
        monkeypatch.setattr(module, "free_port", lambda port: offered[port].pop() if offered.get(port) else free_port())
        try:
            await stack.start()
            assert offered == {preferred: []}
            for url in (stack.addresses.simulators_url, stack.addresses.callback_url):
                assert not url.endswith(f":{taken}")
            async with httpx.AsyncClient() as http:
                told = (await http.get(f"{stack.addresses.simulators_url}/health")).json()
            assert told["state_dir"] == str(tmp_path / "state" / "simulators")
        finally:
            await stack.stop()
            await asyncio.to_thread(EmbeddedPostgres(tmp_path / "state").delete_data)


async def test_stack_that_begins_empty_is_refused_where_data_is_to_last(tmp_path: Path) -> None:
    (kept := tmp_path / "temporal").mkdir()
    stack = EmbeddedStack(tmp_path, disposable=True)
    with pytest.raises(Conflict, match="to last"):
        await stack.start()
    await stack.stop()
    assert kept.exists()
