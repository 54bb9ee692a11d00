"""What the callbacks' port lends to whoever connects: so many connections, and so much time for a request's head."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_WITHIN_S = 5.0
MOST_CONNECTIONS = 500

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class GuardedProtocol(H11Protocol):
    """One connection, which is closed if no request is in hand when the time for the next one's head is over.

    The application itself bounds the time and the size of a body that it reads.
    """

    _waiting: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for a request, or turn the caller away if there are too many."""
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > MOST_CONNECTIONS:
            transport.write(_FULL)
            transport.close()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._waiting.cancel()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._waiting.cancel()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._waiting = self.loop.call_later(HEAD_WITHIN_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
