"""How an Agent gets at its service: authentication, TLS, secrets that rotate, and what a refusal costs."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from activities.agent import Agent, action
from activities.authentication import ApiKey, Authentication, Basic, Bearer, ClientCredentials
from activities.call import Call
from activities.call_loop import Agents
from activities.clock import uptime
from activities.credentials import Credentials
from domain.messages import Completed, Outcome, StoodDown
from domain.redaction import redact
from testing.certificates import Authority
from testing.served import served
from tests.integration.asked import ask, reached, request_of

CANARY = "canary-5f1d7c"


class Partner(Agent):
    """A service that wants to know who calls."""

    service = "partner"

    @action
    async def book(self, call: Call) -> None:
        """Book."""
        await call.post("/book")


def partner(way: Authentication | None) -> type[Partner]:
    """Its Agent, with a way of authentication."""

    class Authenticated(Partner):
        authentication: ClassVar[Authentication | None] = way

    return Authenticated


class Signed:
    """A way that an Agent brings along: any `httpx.Auth` will do."""

    needs: tuple[str, ...] = ("signing_key",)

    def of(self, credentials: Credentials, _: httpx.AsyncClient) -> httpx.Auth:
        """Signs the path."""

        class _Signature(httpx.Auth):
            def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
                request.headers["X-Signature"] = f"{credentials['signing_key']} {request.url.path}"
                yield request

        return _Signature()


class Door:
    """The service: takes a request whose header of that name is one of the wanted ones, and counts the others.

    It issues tokens `token-1`, `token-2`, …, each good until it is revoked. `opens`: False turns all away.
    """

    def __init__(self, header: str = "authorization", *wanted: str) -> None:
        self.header, self.wanted, self.booked, self.turned_away, self.issued = header, set(wanted), 0, 0, 0
        self.opens, self.token_takes_s, self.time_left_ms = True, 0.0, 0
        self.app = FastAPI()
        self.app.add_route("/book", self.book, methods=["POST"])
        self.app.add_route("/token", self.token, methods=["POST"])

    async def book(self, request: Request) -> JSONResponse:
        """Book, for whoever is known."""
        given = request.headers.get(self.header, "")
        self.time_left_ms = int(request.headers["x-time-left-ms"])
        if given in self.wanted and self.opens:
            self.booked += 1
            return JSONResponse({})
        self.turned_away += 1
        return JSONResponse({"error": {"code": "unauthorized", "message": f"who is {given}?"}}, 401)

    async def token(self, request: Request) -> JSONResponse:
        """OAuth client credentials, of one client."""
        form = dict(parse_qsl((await request.body()).decode()))
        if request.headers.get("authorization") != f"Basic {b64encode(f'me:{CANARY}'.encode()).decode()}":
            return JSONResponse({"error": "invalid_client"}, 401)
        assert form == {"grant_type": "client_credentials", "scope": "bookings"}
        await asyncio.sleep(self.token_takes_s)
        self.issued += 1
        self.wanted.add(f"Bearer token-{self.issued}")
        return JSONResponse({"access_token": f"token-{self.issued}", "token_type": "bearer", "expires_in": 3600})


@pytest.mark.demand("H5")
@pytest.mark.parametrize(
    ("way", "access", "header", "wanted"),
    [
        (Bearer(), {"token": CANARY}, "authorization", f"Bearer {CANARY}"),
        (ApiKey("X-Key"), {"api_key": CANARY}, "x-key", CANARY),
        (
            Basic(),
            {"username": "me", "password": CANARY},
            "authorization",
            f"Basic {b64encode(f'me:{CANARY}'.encode()).decode()}",
        ),
        (Signed(), {"signing_key": CANARY}, "x-signature", f"{CANARY} /book"),
    ],
    ids=["bearer", "api key", "basic", "its own"],
)
async def test_request_is_authenticated_as_its_agent_says(
    way: Authentication, access: dict[str, str], header: str, wanted: str
) -> None:
    door = Door(header, wanted)
    async with served(door.app) as url:
        assert await ask(partner(way), url, "book", access=access) == Completed(result={}, calls=1)


@pytest.mark.demand("H5")
async def test_secret_is_read_from_a_file_and_again_when_it_changes(tmp_path: Path) -> None:
    door, secret = Door("authorization", "Bearer token-of-monday"), tmp_path / "token"
    secret.write_text("token-of-monday\n")
    async with served(door.app) as url:
        agent = partner(Bearer())
        async with Agents([agent], *reached(agent, url, {"token_file": secret})) as agents:

            async def book() -> Outcome:
                return await agents.carry_out(request_of(agent, "book"), uptime() + 5)

            assert isinstance(await book(), Completed)
            door.wanted = {"Bearer token-of-tuesday"}
            (tmp_path / "new").write_text("token-of-tuesday\n")
            os.replace(tmp_path / "new", secret)
            assert isinstance(await book(), Completed)
    assert (door.booked, door.turned_away) == (2, 0)


# --- OAuth ----------------------------------------------------------------------------------------------------


@pytest.mark.demand("H5")
async def test_oauth_token_is_fetched_once_and_again_when_it_is_refused() -> None:
    door = Door()
    async with served(door.app) as url:
        agent = partner(ClientCredentials(scope="bookings"))
        access = {"token_url": f"{url}/token", "client_id": "me", "client_secret": CANARY}
        async with Agents([agent], *reached(agent, url, access)) as agents:

            async def book() -> Outcome:
                return await agents.carry_out(request_of(agent, "book"), uptime() + 5)

            assert list(await asyncio.gather(book(), book())) == [
                Completed(result={}, calls=1),
                Completed(result={}, calls=1),
            ]
            assert door.issued == 1
            door.wanted.clear()
            assert await book() == Completed(result={}, calls=1), "a refusal at the door is no call"
    assert (door.issued, door.turned_away, door.booked) == (2, 1, 3)


@pytest.mark.demand("C3")
async def test_time_that_a_token_took_is_gone_from_what_the_service_is_told() -> None:
    door = Door()
    door.token_takes_s = 0.5
    async with served(door.app) as url:
        access = {"token_url": f"{url}/token", "client_id": "me", "client_secret": CANARY}
        way = ClientCredentials(scope="bookings")
        assert isinstance(await ask(partner(way), url, "book", access=access, within_s=2.0), Completed)
        assert 0 < door.time_left_ms < 1_500
        late = await ask(partner(way), url, "book", access=access, within_s=0.57)
    assert not isinstance(late, Completed)
    assert (door.booked, door.issued) == (1, 2), "with the token came the end of the time"


@pytest.mark.demand("C5", "E1")
async def test_authorisation_server_that_is_away_costs_no_call() -> None:
    door = Door()
    async with served(door.app) as url, served(FastAPI()) as gone:
        access = {"token_url": f"{gone}/token", "client_id": "me", "client_secret": CANARY}
        outcome = await ask(partner(ClientCredentials()), url, "book", access=access)
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, door.booked, door.turned_away) == (0, 0, 0)


# --- refused, or missing --------------------------------------------------------------------------------------


@pytest.mark.failure(122)
@pytest.mark.demand("C5", "E1", "H5")
@pytest.mark.parametrize("calls", [1, 3])
async def test_refused_credential_costs_no_call_and_is_an_alert(calls: int) -> None:
    door = Door("authorization", "Bearer another")
    async with served(door.app) as url:
        outcome = await ask(partner(Bearer()), url, "book", access={"token": CANARY}, calls=calls, epoch=4)
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.lacking, outcome.unreachable) == (0, "service partner", True)
    assert outcome.retry_after_s == 8
    assert "401 unauthorized" in outcome.cause
    assert door.turned_away == min(calls, 2)


@pytest.mark.demand("H5")
@pytest.mark.parametrize(
    ("way", "access", "named"),
    [
        (Bearer(), {}, "SAS_ACCESS__PARTNER__TOKEN is not set"),
        (
            Bearer(),
            {"token_file": "/nowhere/token"},
            "SAS_ACCESS__PARTNER__TOKEN_FILE can't be used: FileNotFoundError",
        ),
        (Basic(), {"username": "me"}, "SAS_ACCESS__PARTNER__PASSWORD is not set"),
        (None, {"ca_file": "/nowhere/ca"}, "SAS_ACCESS__PARTNER__CA_FILE can't be used"),
    ],
)
async def test_missing_credential_is_named_before_and_at_the_call(
    way: Authentication | None, access: dict[str, str], named: str
) -> None:
    agent = partner(way)
    async with Agents([agent], *reached(agent, "https://localhost:9", access)) as agents:
        (problem,) = agents.missing(["partner"])
        assert problem.startswith(named)
        outcome = await agents.carry_out(request_of(agent, "book"), uptime() + 5)
    assert isinstance(outcome, StoodDown)
    assert (outcome.sent, outcome.lacking, outcome.unreachable) == (0, "service partner", False)
    assert named in outcome.cause


# --- TLS ------------------------------------------------------------------------------------------------------


@pytest.mark.demand("H5")
async def test_private_authority_and_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, ours = authority.issue("server"), authority.issue("ours")
    door = Door("authorization", "")
    everything = {
        "ca_file": authority.certificate,
        "certificate_file": ours.certificate,
        "certificate_key_file": ours.key,
    }
    async with served(door.app, server, clients_of=authority.certificate) as url:
        assert isinstance(await ask(Partner, url, "book", access=everything), Completed)
        for without in ("ca_file", "certificate_file"):
            outcome = await ask(Partner, url, "book", access={k: v for k, v in everything.items() if k != without})
            assert not isinstance(outcome, Completed)
    assert door.booked == 1


@pytest.mark.demand("H5")
async def test_client_certificate_that_was_replaced_is_used(tmp_path: Path) -> None:
    old, new = (Authority(_folder(tmp_path / name)) for name in ("old", "new"))
    stale, fresh, server = old.issue("ours"), new.issue("ours"), new.issue("server")
    used = {name: tmp_path / name for name in ("ca.pem", "ours.pem", "ours.key")}
    _replace(used, new.certificate, stale.certificate, stale.key)
    access = dict(zip(("ca_file", "certificate_file", "certificate_key_file"), used.values(), strict=True))
    door = Door("authorization", "")
    async with (
        served(door.app, server, clients_of=new.certificate) as url,
        Agents([Partner], *reached(Partner, url, access)) as agents,
    ):
        assert not isinstance(await agents.carry_out(request_of(Partner, "book", calls=1), uptime() + 5), Completed)
        _replace(used, new.certificate, fresh.certificate, fresh.key)
        assert isinstance(await agents.carry_out(request_of(Partner, "book", calls=1), uptime() + 5), Completed)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _replace(used: dict[str, Path], *by: Path) -> None:
    for path, other in zip(used.values(), by, strict=True):
        path.write_bytes(other.read_bytes())


# --- secrets are never shown ----------------------------------------------------------------------------------


@pytest.mark.demand("H5")
async def test_service_that_repeats_our_secret_gives_nothing_away(tmp_path: Path) -> None:
    """The service quotes the token in its refusal, which becomes an event, an alert, and a failure in a history."""
    secret: dict[str, Any] = {"token_file": tmp_path / "token"}
    secret["token_file"].write_text(CANARY)
    async with served(Door("authorization", "Bearer another").app) as url:
        outcome = await ask(partner(Bearer()), url, "book", access=secret)
    assert CANARY not in repr(outcome)
    assert CANARY not in redact(f"token {CANARY} was refused")


@pytest.mark.demand("H5")
async def test_token_that_the_service_repeats_is_hidden_while_it_lasts() -> None:
    """Tokens come and go: the last two are known to be secret, as calls with the one before may be on their way."""
    door = Door()
    door.opens = False
    async with served(door.app) as url:
        access = {"token_url": f"{url}/token", "client_id": "me", "client_secret": CANARY}
        outcome = await ask(partner(ClientCredentials(scope="bookings")), url, "book", access=access)
    assert isinstance(outcome, StoodDown)
    assert "who is Bearer [redacted]?" in outcome.cause
    assert door.issued == 2
    assert redact("token-1 token-2") == "[redacted] [redacted]"
