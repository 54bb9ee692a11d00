"""A pooler that lends its one session by transaction, as PgBouncer does in that mode: enough of one to be noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from struct import pack, unpack
from urllib.parse import urlsplit

import psycopg

_NOT_ENCRYPTED = (80877103, 80877104)
_STARTED = {"server_version": "18.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"}


@asynccontextmanager
async def transaction_pooler(dsn: str) -> AsyncIterator[str]:
    """A pooler in front of `dsn`; its own address of the same database."""
    with psycopg.connect(dsn, sslmode="disable", gssencmode="disable") as owner:
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=socket.dup(owner.fileno())))
        lent = asyncio.Lock()

        async def serve(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await _start(client, answers)
                while True:
                    first = await _message(client)
                    if first[:1] == b"X":
                        break
                    async with lent:
                        await _lend(first, client, answers, reader, writer)
            answers.close()
            await answers.wait_closed()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            parts = urlsplit(dsn)
            yield parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}").geturl()
        writer.close()
        await writer.wait_closed()


async def _start(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
    """Let a client in, whoever it is."""
    while True:
        (length,) = unpack("!I", await client.readexactly(4))
        (code,) = unpack("!I", (await client.readexactly(length - 4))[:4])
        if code not in _NOT_ENCRYPTED:
            break
        answers.write(b"N")
    answers.write(b"R" + pack("!II", 8, 0))
    for name, value in _STARTED.items():
        text = f"{name}\0{value}\0".encode()
        answers.write(b"S" + pack("!I", 4 + len(text)) + text)
    answers.write(b"K" + pack("!III", 12, 1, 1) + b"Z" + pack("!I", 5) + b"I")


async def _lend(
    first: bytes,
    client: asyncio.StreamReader,
    answers: asyncio.StreamWriter,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Pass messages on in both directions until the transaction is over."""
    writer.write(first)
    waiting = first[:1] in (b"Q", b"S")
    asked, answered = asyncio.ensure_future(_message(client)), asyncio.ensure_future(_message(reader))
    try:
        while True:
            await asyncio.wait({asked, answered}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                waiting += asked.result()[:1] in (b"Q", b"S")
                writer.write(asked.result())
                asked = asyncio.ensure_future(_message(client))
            if answered.done():
                answers.write(answered.result())
                if answered.result()[:1] == b"Z":
                    waiting -= 1
                    if waiting == 0 and answered.result()[-1:] == b"I":
                        return
                answered = asyncio.ensure_future(_message(reader))
    finally:
        asked.cancel()
        answered.cancel()
        await asyncio.gather(asked, answered, return_exceptions=True)


async def _message(stream: asyncio.StreamReader) -> bytes:
    head = await stream.readexactly(5)
    return head + await stream.readexactly(unpack("!I", head[1:])[0] - 4)
