"""The proxy: each fault does to a line what it says, counts it, and leaves nothing behind once it is healed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import psycopg
import pytest

from chaos.proxy import Cut, Faults, Proxy, Way
from devstack.servers.postgres import EmbeddedPostgres
from testing.waiting import eventually

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opened = Callable[[], Awaitable[Streams]]

REQUEST = b"POST /charges HTTP/1.1\r\nIdempotency-Key: t:charge:0\r\nContent-Length: 4\r\n\r\nbody"


class Echo:
    """A server that says back what it hears, and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(1 << 16):
            self.heard.append(said)
            writer.write(said)
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, int]]:
    """An echo, and its port."""
    echo = Echo()
    server = await asyncio.start_server(echo.answer, "127.0.0.1", 0)
    yield echo, server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def proxy(echo: tuple[Echo, int]) -> AsyncIterator[Proxy]:
    """A proxy before the echo, which splits requests."""
    async with Proxy(("127.0.0.1", echo[1]), http=True) as proxy:
        yield proxy


@pytest.fixture
async def opened(proxy: Proxy) -> AsyncIterator[Opened]:
    """Opens connections through the proxy."""
    found: list[Streams] = []

    async def opened() -> Streams:
        found.append(await asyncio.open_connection("127.0.0.1", proxy.port))
        return found[-1]

    yield opened
    for _, writer in found:
        writer.close()


async def said(streams: Streams, what: bytes = REQUEST) -> bytes:
    """What comes back."""
    reader, writer = streams
    writer.write(what)
    await writer.drain()
    async with asyncio.timeout(5):
        return await reader.readexactly(len(what))


async def is_reset(streams: Streams) -> bool:
    try:
        streams[1].write(REQUEST)
        return await streams[0].read(1) == b""
    except ConnectionResetError:
        return True


async def test_proxy_forwards_both_ways_and_to_another_upstream(
    opened: Opened, proxy: Proxy, echo: tuple[Echo, int]
) -> None:
    assert await said(await opened()) == REQUEST
    proxy.upstream = ("127.0.0.1", 1)
    assert await is_reset(await opened())
    assert proxy.effects == {"unreachable": 1}


async def test_reset_and_refusal_are_seen_at_once(opened: Opened, proxy: Proxy) -> None:
    streams = await opened()
    await said(streams)
    proxy.reset()
    assert await is_reset(streams)
    proxy.faults = Faults(refuse=True)
    assert await is_reset(await opened())
    proxy.heal()
    assert await said(await opened()) == REQUEST
    assert (proxy.effects["cut"], proxy.effects["refused"]) == (1, 1)


async def test_swallowed_bytes_leave_the_connection_open_until_it_is_healed(opened: Opened, proxy: Proxy) -> None:
    streams, quiet = await opened(), await opened()
    await said(streams)
    await said(quiet)
    proxy.faults = Faults(blackhole=True)
    streams[1].write(REQUEST)
    await eventually(lambda: _has(proxy, "swallowed"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await streams[0].read(1)
    proxy.heal()
    assert await is_reset(streams)
    assert await said(quiet) == REQUEST
    assert proxy.effects["swallowed"] == len(REQUEST)


async def _has(proxy: Proxy, effect: str) -> bool:
    return proxy.effects[effect] > 0


@pytest.mark.parametrize("way", Way)
async def test_connection_is_cut_after_so_many_bytes(
    opened: Opened, proxy: Proxy, echo: tuple[Echo, int], way: Way
) -> None:
    proxy.faults = Faults(cut_after={way: 10})
    reader, writer = await opened()
    writer.write(REQUEST)
    with pytest.raises(ConnectionResetError):  # noqa: PT012 (however much of it has come)
        while await reader.read(1):
            pass
    assert proxy.effects["cut"] == 1
    await eventually(lambda: _heard(echo[0], 10 if way is Way.THERE else len(REQUEST)))


async def _heard(echo: Echo, length: int) -> bool:
    return len(b"".join(echo.heard)) == length


async def test_request_is_duplicated_as_a_whole_and_its_key_counted(
    opened: Opened, proxy: Proxy, echo: tuple[Echo, int]
) -> None:
    proxy.faults = Faults(duplicate=1.0)
    streams = await opened()
    assert await said(streams) == REQUEST
    await eventually(lambda: _heard(echo[0], 2 * len(REQUEST)))
    assert (proxy.duplicated, proxy.effects["duplicated"]) == ({("POST", "t:charge:0"): 1}, 1)


async def test_request_that_is_held_is_overtaken(opened: Opened, proxy: Proxy, echo: tuple[Echo, int]) -> None:
    proxy.faults = Faults(hold=1.0, hold_s=0.3)
    first = asyncio.create_task(said(await opened()))
    await eventually(lambda: _has(proxy, "held"))
    proxy.faults = Faults(delay_s=0.01)
    later = REQUEST.replace(b"body", b"late")
    assert await said(await opened(), later) == later
    assert echo[0].heard == [later]
    assert await first == REQUEST
    assert proxy.effects["delayed"] == 4


@pytest.mark.parametrize("cut", Cut)
async def test_connection_is_cut_at_a_commit_also_where_it_was_prepared(templates: EmbeddedPostgres, cut: Cut) -> None:
    parts = urlsplit(templates.dsn("state_template", "app", "app"))
    async with Proxy((str(parts.hostname), int(parts.port or 0))) as proxy:
        place = f"host=127.0.0.1 port={proxy.port} user=app password=app dbname=state_template"
        async with await psycopg.AsyncConnection.connect(place, autocommit=True) as connection:
            connection.prepare_threshold = 2
            for _ in range(5):
                await _transaction(connection)
            proxy.arm(cut)
            with pytest.raises(psycopg.OperationalError):
                await _transaction(connection)
        assert proxy.effects[cut] == 1


async def _transaction(connection: psycopg.AsyncConnection) -> None:
    async with connection.pipeline():
        for statement in ("BEGIN", "SELECT 1", "COMMIT"):
            await connection.execute(statement)
