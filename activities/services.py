"""The remote services as one process reaches them: address, credentials, and an HTTP client each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import httpx
from pydantic import SecretStr

from activities.credentials import Credentials, Stamp
from activities.http import new_client

if TYPE_CHECKING:  # an Agent's methods take a Call, which knows its service
    from activities.agent import Agent


def setting_of(service: str) -> str:
    """The environment variable that holds a service's address."""
    return f"SAS_SERVICES__{service.upper()}"


class Service:
    """One remote service.

    Args:
        agent: Says how requests are authenticated. url: Base URL; None if it is not known.
        given: Credentials by name, as `Credentials` takes them.
    """

    def __init__(self, agent: type[Agent], url: str | None, given: Mapping[str, SecretStr]) -> None:
        self._agent, self.url = agent, (url or "").rstrip("/")
        self.credentials = Credentials(agent.service, given)
        self._clients: list[httpx.AsyncClient] = []
        self._stamps: tuple[Stamp, ...] = ()

    def client(self) -> httpx.AsyncClient:
        """The HTTP client; another one once a file of TLS has changed.

        Raises:
            NoCredential: A file of TLS can't be used.
        """
        stamps = self.credentials.tls_stamps()
        if not self._clients or stamps != self._stamps:
            client = new_client(tls=self.credentials.tls(), most_connections=self._agent.most_connections)
            if self._agent.authentication is not None:
                client.auth = self._agent.authentication.of(self.credentials, client)
            self._clients.append(client)  # those before may still be at work: they are closed at the end
            self._stamps = stamps
        return self._clients[-1]

    def address_problem(self) -> str:
        """What is wrong with its address; empty if nothing is."""
        return f"{setting_of(self._agent.service)} is not set" if self._agent.over_http and not self.url else ""

    def missing(self) -> Iterator[str]:
        """What it lacks for its Agent to call it: settings, each with what is wrong."""
        yield from filter(None, [self.address_problem()])
        yield from self.credentials.missing(self._agent.needed())

    async def close(self) -> None:
        """Close its connections."""
        await asyncio.gather(*(client.aclose() for client in self._clients))
