"""A stand-in for a remote service, served by this process over HTTP, or over HTTPS with a certificate."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from testing.certificates import Certificate


@asynccontextmanager
async def served(app: Any, tls: Certificate | None = None, *, clients_of: Path | None = None) -> AsyncIterator[str]:
    """The address of an ASGI application. `clients_of`: the authority whose certificates clients must show."""
    options: dict[str, Any] = {}
    if tls is not None:
        options = {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
    if clients_of is not None:
        options |= {"ssl_ca_certs": str(clients_of), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off", **options)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())  # without `serve`'s hold on the process's signals
    while not server.started:  # noqa: ASYNC110 (uvicorn offers no event for it)
        await asyncio.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://localhost:{port}"
    finally:
        server.should_exit = True
        await serving
