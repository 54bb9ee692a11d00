"""The role `callbacks`: the HTTP server that takes answers that come later."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import structlog
import uvicorn
from temporalio.client import Client

from activities.call_loop import Agents
from activities.draining import Draining
from activities.http import new_client
from definitions import registry
from domain.faults import UsageError
from domain.text import place
from runtime.callbacks.addresses import callback_addresses
from runtime.callbacks.answers import Callbacks
from runtime.callbacks.guard import GuardedProtocol
from runtime.deployment import deployment_of
from runtime.settings import Settings
from runtime.wiring import open_state_store
from store.inbox import InboxStore

log = structlog.get_logger(__name__)

_END_WITHIN_S = 1


@asynccontextmanager
async def callbacks_served(
    settings: Settings, client: Client, agents: Agents, draining: Draining
) -> AsyncIterator[None]:
    """Take answers for as long as the context lasts.

    Raises:
        UsageError: There is no secret, or the port is another program's.
    """
    async with open_state_store(settings, size=2) as store:
        if not settings.callback_secret.get_secret_value():
            raise UsageError("answers can't be told from forged ones: set SAS_CALLBACK_SECRET, or leave out this role")
        addresses, inbox = callback_addresses(settings), InboxStore(store.database)
        callbacks = Callbacks(store, inbox, client, registry(), agents.actions, addresses)
        server = _Server(
            uvicorn.Config(
                callbacks.app(deployment_of(settings)),
                host=settings.callback_host,
                port=settings.callback_port,
                http=GuardedProtocol,
                log_config=None,
                lifespan="off",
                timeout_graceful_shutdown=_END_WITHIN_S,
            )
        )
        serving = asyncio.create_task(server.serve())
        draining.left.append("callbacks")
        try:
            while not server.started and not serving.done():  # noqa: ASYNC110 (uvicorn offers no event for it)
                await asyncio.sleep(0.01)
            if serving.done() and not await _is_served_elsewhere(settings):
                where = place(settings.callback_host, settings.callback_port)
                raise UsageError(f"callbacks can't listen on {where}")
            yield
        finally:
            server.should_exit = True
            await serving
            draining.left.remove("callbacks")


async def _is_served_elsewhere(settings: Settings) -> bool:
    """Whether another worker of this deployment takes the answers here already: then this one need not."""
    url = f"http://{place(settings.callback_host, settings.callback_port)}/health"
    async with new_client() as http:
        try:
            found = bool((await http.get(url, timeout=2)).json().get("deployment") == deployment_of(settings))
        except (httpx.HTTPError, ValueError, AttributeError):
            return False
    if found:
        log.warning("another worker on this machine takes the answers", url=url)
    return found


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to the process."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening; a port that is taken ends the server, not the process."""
        try:
            await super().startup(sockets)
        except SystemExit:
            self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield
