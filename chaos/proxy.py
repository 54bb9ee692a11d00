"""One TCP proxy for every fault of a line between two processes, switched on and off while it runs.

Each fault counts its visible effects in `Proxy.effects`: a run in which nothing was hurt shows nothing. The names are
`delayed`, `stalled`, `refused`, `unreachable` and `cut` (connections), `swallowed` (bytes), `duplicated` and `held`
(requests), and the values of `Cut`.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType

_PIECE = 1 << 16
_KEY = re.compile(rb"\r\nidempotency-key: *([^\r]+)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_COMMIT_PREPARED = re.compile(rb"P.{4}([^\x00]+)\x00COMMIT\x00", re.DOTALL)


class Way(StrEnum):
    """A direction: from the client there, and back."""

    THERE = "there"
    BACK = "back"


class Cut(StrEnum):
    """Where a PostgreSQL connection dies."""

    AFTER_COMMIT = "after the commit, before its acknowledgement"
    BEFORE_COMMIT = "before the commit"


@dataclass
class Faults:
    """What is wrong with the line. Rates are probabilities, drawn once a request.

    Attributes:
        delay_s, jitter_s: Every piece waits, in order, in both directions.
        stall: Every piece waits until this is over; nothing is lost.
        blackhole: Bytes are swallowed and connections stay open; one that lost bytes is reset by `heal`.
        refuse: New connections are reset at once.
        cut_after: A connection is reset when so many bytes have gone that way.
        duplicate, duplicate_after_s: An HTTP request arrives a second time, so much later; nobody hears the answer.
        hold, hold_s: An HTTP request is held back, so that later ones overtake it.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    stall: bool = False
    blackhole: bool = False
    refuse: bool = False
    cut_after: dict[Way, int] = field(default_factory=dict)
    duplicate: float = 0.0
    duplicate_after_s: float = 0.0
    hold: float = 0.0
    hold_s: float = 0.5


class Proxy:
    """Listens on loopback and forwards to `upstream`, which may change at run time. Use it with `async with`.

    Args:
        upstream: Host and port. http: split what clients say into HTTP/1.1 requests, for the faults of requests.
        seed: Of all draws. port: 0 takes a free one.
    """

    def __init__(self, upstream: tuple[str, int], *, http: bool = False, seed: int = 0, port: int = 0) -> None:
        self.upstream, self.http, self.port = upstream, http, port
        self.faults = Faults()
        self.effects: Counter[str] = Counter()
        self.duplicated: Counter[tuple[str, str]] = Counter()
        """Method and idempotency key of the requests that arrived once more than a client sent them."""
        self.random = random.Random(seed)  # noqa: S311 (repeatable draws, no secrets)
        self._armed: Counter[Cut] = Counter()
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def arm(self, cut: Cut, times: int = 1) -> None:
        """Cut the next `times` connections that commit."""
        self._armed[cut] += times

    def reset(self) -> None:
        """Reset every connection that is open now."""
        for line in list(self._lines):
            line.cut("cut")

    def heal(self) -> None:
        """Forward everything from now on; a connection that has lost bytes is reset, as its ends no longer agree."""
        self.faults = Faults()
        self._armed.clear()
        for line in [x for x in self._lines if x.has_lost_bytes]:
            line.cut("cut")

    def takes(self, cut: Cut) -> bool:
        """Whether this is a commit to cut; used up by asking."""
        if not self._armed[cut]:
            return False
        self._armed[cut] -= 1
        return True

    def draw(self, rate: float, effect: str) -> bool:
        """Whether a fault of that rate strikes now, counted as `effect`."""
        struck = rate > 0 and self.random.random() < rate
        if struck:
            self.effects[effect] += 1
        return struck

    def spawn(self, work: asyncio.Task[None]) -> None:
        """Keep a task that ends with the proxy at the latest."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.spawn(task := asyncio.current_task())  # type: ignore[arg-type]  # a callback of a server is a task
        line = _Line(self, reader, writer)
        self._lines.add(line)
        try:
            await line.run()
        except asyncio.CancelledError:
            assert task is not None  # the proxy is closed; a handler that ends as cancelled would be logged
        finally:
            line.close()
            self._lines.discard(line)


class _Line:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        self._up_writer: asyncio.StreamWriter | None = None
        self._gone: Counter[Way] = Counter()
        self._commits: set[bytes] = set()
        self.has_lost_bytes = False

    async def run(self) -> None:
        """Forward until one side has nothing more to say, or the line is cut."""
        if self._proxy.faults.refuse:
            return self.cut("refused")
        try:
            up_reader, self._up_writer = await asyncio.open_connection(*self._proxy.upstream)
        except OSError:
            return self.cut("unreachable")
        ways = [asyncio.create_task(w) for w in (self._there(self._up_writer), self._back(up_reader))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def cut(self, effect: str) -> None:
        """Reset both sides: whoever reads or writes next is told that the connection was reset."""
        self._proxy.effects[effect] += 1
        for writer in filter(None, (self._writer, self._up_writer)):
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def close(self) -> None:
        """Close both sides, after what is still to be sent."""
        for writer in filter(None, (self._writer, self._up_writer)):
            writer.close()

    async def _there(self, up: asyncio.StreamWriter) -> None:
        pieces = self._requests() if self._proxy.http else _pieces(self._reader)
        async for piece in pieces:
            if self._is_commit(piece) and self._proxy.takes(Cut.BEFORE_COMMIT):
                return self.cut(Cut.BEFORE_COMMIT)
            if not await self._pass(piece, up, Way.THERE):
                return None
            if self._proxy.http and self._proxy.draw(self._proxy.faults.duplicate, "duplicated"):
                self._proxy.spawn(asyncio.create_task(self._again(piece, self._proxy.faults.duplicate_after_s)))
        return None

    async def _back(self, up: asyncio.StreamReader) -> None:
        async for piece in _pieces(up):
            if b"COMMIT\x00" in piece and self._proxy.takes(Cut.AFTER_COMMIT):
                return self.cut(Cut.AFTER_COMMIT)
            if not await self._pass(piece, self._writer, Way.BACK):
                return None
        return None

    async def _pass(self, piece: bytes, writer: asyncio.StreamWriter, way: Way) -> bool:
        """Forward one piece, unless a fault is in the way; whether the line still stands."""
        faults, effects = self._proxy.faults, self._proxy.effects
        if faults.delay_s or faults.jitter_s:
            effects["delayed"] += 1
            await asyncio.sleep(faults.delay_s + self._proxy.random.uniform(0, faults.jitter_s))
        if self._proxy.faults.stall:
            effects["stalled"] += 1
            while self._proxy.faults.stall:  # noqa: ASYNC110 (switched by assignment, like every fault)
                await asyncio.sleep(0.01)
        if self._proxy.faults.blackhole or self.has_lost_bytes:
            self.has_lost_bytes = True
            effects["swallowed"] += len(piece)
            return True
        room = faults.cut_after.get(way, len(piece) + self._gone[way]) - self._gone[way]
        self._gone[way] += len(piece)
        with suppress(OSError):
            writer.write(piece[: max(0, room)])
            await writer.drain()
        if room < len(piece):
            self.cut("cut")
        return room >= len(piece) and not writer.is_closing()

    def _is_commit(self, piece: bytes) -> bool:
        """Whether a client says COMMIT, also by the name under which its driver has prepared it on this connection."""
        self._commits |= set(_COMMIT_PREPARED.findall(piece))
        return b"COMMIT\x00" in piece or any(b"\x00" + name + b"\x00" in piece for name in self._commits)

    async def _requests(self) -> AsyncIterator[bytes]:
        """The client's requests, each whole, and late if it is held."""
        said = b""
        async for piece in _pieces(self._reader):
            said += piece
            while (end := _end_of_request(said)) is not None:
                if self._proxy.draw(self._proxy.faults.hold, "held"):
                    await asyncio.sleep(self._proxy.faults.hold_s)
                yield said[:end]
                said = said[end:]

    async def _again(self, request: bytes, after_s: float) -> None:
        """Deliver a request once more, on a connection of its own, and wait until it is answered."""
        await asyncio.sleep(after_s)
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*self._proxy.upstream)
            try:
                writer.write(request)
                await writer.drain()
                method, key = request.partition(b" ")[0].decode(), _KEY.search(request)
                self._proxy.duplicated[method, key[1].decode() if key else ""] += 1
                await reader.read(_PIECE)
            finally:
                writer.close()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """What comes, as it comes, until the end or a reset."""
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            yield piece


def _end_of_request(said: bytes) -> int | None:
    """Where the first request ends; None if it is not all there yet."""
    head = said.find(b"\r\n\r\n")
    if head < 0:
        return None
    length = _LENGTH.search(said, 0, head + 2)
    end = head + 4 + (int(length[1]) if length else 0)
    return end if len(said) >= end else None
