"""How the requests of an Agent are authenticated: each way names the credentials that it needs.

An Agent with a way of its own gives a class with the same two members; any `httpx.Auth` will do.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Protocol

import httpx

from activities.clock import uptime
from activities.credentials import Credentials
from activities.http import read_object
from domain.faults import NoAccess, NotSent
from domain.redaction import forget, know

_TOKEN_WITHIN_S = 10.0
_EARLY_S = 30.0
"""A token is fetched again so long before it ends."""


class Authentication(Protocol):
    """A way of authenticating requests."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the credentials that it needs."""

    def of(self, credentials: Credentials, client: httpx.AsyncClient) -> httpx.Auth:
        """What httpx asks for each request; `client` reaches the same service."""


@dataclass(frozen=True)
class Bearer:
    """`Authorization: Bearer …`, with the credential `token`."""

    needs: tuple[str, ...] = ("token",)

    def of(self, credentials: Credentials, _: httpx.AsyncClient) -> httpx.Auth:
        """Reads the token for each request."""
        return _Header("Authorization", lambda: f"Bearer {credentials['token']}")


@dataclass(frozen=True)
class ApiKey:
    """A header of the service's own, with the credential `api_key`."""

    header: str = "X-API-Key"
    needs: tuple[str, ...] = ("api_key",)

    def of(self, credentials: Credentials, _: httpx.AsyncClient) -> httpx.Auth:
        """Reads the key for each request."""
        return _Header(self.header, lambda: credentials["api_key"])


@dataclass(frozen=True)
class Basic:
    """`Authorization: Basic …`, with the credentials `username` and `password`."""

    needs: tuple[str, ...] = ("username", "password")

    def of(self, credentials: Credentials, _: httpx.AsyncClient) -> httpx.Auth:
        """Reads both for each request."""
        return _Header("Authorization", lambda: _basic(credentials["username"], credentials["password"]))


@dataclass(frozen=True)
class ClientCredentials:
    """OAuth 2.0 client credentials: a token of `token_url` for `client_id` and `client_secret`, kept while it lasts."""

    scope: str = ""
    needs: tuple[str, ...] = ("token_url", "client_id", "client_secret")

    def of(self, credentials: Credentials, client: httpx.AsyncClient) -> httpx.Auth:
        """Fetches a token when there is none, or the last one was refused or is about to end."""
        return _OAuth(self.scope, credentials, client)


def _basic(username: str, password: str) -> str:
    return f"Basic {b64encode(f'{username}:{password}'.encode()).decode()}"


class _Header(httpx.Auth):
    def __init__(self, name: str, value: Callable[[], str]) -> None:
        self._name, self._value = name, value

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers[self._name] = self._value()
        yield request


class _OAuth(httpx.Auth):
    def __init__(self, scope: str, credentials: Credentials, client: httpx.AsyncClient) -> None:
        self._scope, self._credentials, self._client = scope, credentials, client
        self._token, self._before, self._ends, self._fetching = "", "", 0.0, asyncio.Lock()

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        async with self._fetching:
            if uptime() >= self._ends:
                await self._fetch()
        token = self._token
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and token == self._token:
            self._ends = 0.0  # the next call, which is counted, fetches another

    async def _fetch(self) -> None:
        """Fetch a token; without one no request is sent."""
        user, password = self._credentials["client_id"], self._credentials["client_secret"]
        form = {"grant_type": "client_credentials", **({"scope": self._scope} if self._scope else {})}
        try:
            response = await self._client.post(
                self._credentials["token_url"],
                data=form,
                headers={"Authorization": _basic(user, password)},
                auth=httpx.Auth(),  # none
                timeout=_TOKEN_WITHIN_S,
            )
            body = read_object(response.content)
            if response.is_success:
                self._replace(str(body["access_token"]))
                self._ends = uptime() + max(0.0, float(body.get("expires_in", 0)) - _EARLY_S)
                return
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise NotSent(f"no token of the authorisation server: {type(error).__name__}") from error
        if response.is_client_error and response.status_code != httpx.codes.TOO_MANY_REQUESTS:
            raise NoAccess(f"no token of the authorisation server: {response.status_code} {body.get('error', '')}")
        raise NotSent(f"no token of the authorisation server: {response.status_code}")

    def _replace(self, token: str) -> None:
        """Use another token; the last one, with which calls may be on their way, stays known to be secret."""
        know([token])
        if self._before not in ("", token, self._token):
            forget([self._before])
        self._before, self._token = self._token, token
