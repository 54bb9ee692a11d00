"""Cutting a connection for real, so that a client sees what a dead server looks like."""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_TRANSPORT = "simulators.transport"


class ExposeTransport:
    """ASGI wrapper that lets a response reach the TCP connection. It must be the outermost one."""

    def __init__(self, app: ASGIApp) -> None:
        """Wraps an application that uvicorn serves."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, with the transport in its scope."""
        if scope["type"] == "http":
            # uvicorn hands out a bound method of the object that owns the connection.
            scope[_TRANSPORT] = getattr(getattr(send, "__self__", None), "transport", None)
        await self._app(scope, receive, send)


class CutConnection(Response):
    """A response that sends nothing and aborts the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Aborts, waits until the server has noticed, then runs the background task if there is one."""
        scope[_TRANSPORT].abort()
        while (await receive())["type"] != "http.disconnect":
            pass
        if self.background is not None:
            await self.background()
