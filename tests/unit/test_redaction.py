"""What is secret is taken out of a text by its place or its value, and what only looks like it stays."""

from __future__ import annotations

import json
import logging
from time import monotonic
from urllib.parse import quote

import pytest
from pydantic import SecretStr
from temporalio.api.failure.v1 import Failure

from domain.faults import PermanentFault, Unreachable, UsageError
from domain.redaction import HIDDEN, know, redact, secrets_in
from runtime.logging import set_up_logging
from runtime.plugin import new_plugin
from runtime.settings import Settings

SECRET = "kestrel-42/ü'\"%\\x"


@pytest.mark.failure(112)
@pytest.mark.parametrize(
    "text",
    [
        "https://ada:{}@host/path",
        "https://{}@host:1/path",
        "postgresql://ada:{}@one:5432,two:5432/orders",
        "no answer from redis://:{}@host, again in 5 s",
        "https%3A%2F%2Fada%3A{}%40host%2Fpath",
        "host=db user=ada password={} dbname=orders",
        "host=db password='{} x' dbname=orders",
        "https://host/path?token={}&page=2",
        "Authorization: Bearer {}",
        "{{'authorization': 'Basic {}'}}",
        'X-Api-Key: "{}"',
        '{{"client_secret": "{}", "page": 2}}',
        "api_key={}, page=2",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "a token eyJhbGciOiJI.{}.c2ln of theirs",
    ],
)
def test_secret_that_nobody_knows_is_hidden_by_its_place(text: str) -> None:
    found = redact(text.format("p4-swan-p4"))
    assert "swan" not in found
    assert HIDDEN in found


@pytest.mark.failure(112)
@pytest.mark.parametrize(
    "form",
    [SECRET, quote(SECRET, safe=""), quote(SECRET, safe="").lower(), quote(SECRET), json.dumps(SECRET), repr(SECRET)],
)
def test_secret_that_is_known_is_hidden_wherever_it_stands(form: str) -> None:
    know([SECRET])
    assert "estrel" not in redact(f"before {form} after")


@pytest.mark.parametrize(
    "text",
    [
        "409 invalid_token: the card was refused",
        "SAS_CALLBACK_SECRET has fewer than 32 characters",
        "X-Fencing-Token: 7",
        'password authentication failed for user "app"',
        "state store at 127.0.0.1:5432/scheduler does not answer",
        "ask ada@example.com, or look at https://host/a@b",
        "basic authentication is needed",
    ],
)
def test_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_redacted_text_is_redacted_already_and_json_stays_json() -> None:
    text = json.dumps({"authorization": "Bearer a.b-c1234", "password": 'x"y', "url": "https://a:b@c/", "n": 1})
    found = redact(text)
    assert redact(found) == found
    assert json.loads(found) == {"authorization": HIDDEN, "password": HIDDEN, "url": f"https://{HIDDEN}@c/", "n": 1}


@pytest.mark.parametrize("text", ["a-" * 200_000, "a" * 400_000, "://" * 100_000, "password" * 50_000, '"' * 400_000])
def test_long_text_is_redacted_in_good_time(text: str) -> None:
    began = monotonic()
    redact(text)
    assert monotonic() - began < 10


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        ("https://ada:heron-1%2F2@host/x", "heron-1%2F2"),
        ("https://bittern-token@host", "bittern-token"),
        ("postgresql://app:osprey-1@a,b/orders?sslmode=require&sslpassword=osprey-2", "osprey-2"),
        (r"host=a password='it\'s a crane' dbname=b", "it's a crane"),
        ("host=a password=plover-9 dbname=b", "plover-9"),
    ],
)
def test_secret_part_of_an_address_is_found(address: str, secret: str) -> None:
    assert secret in secrets_in(address)


def test_secrets_of_the_settings_and_of_the_environment_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "wagtail-key")
    Settings(
        database_url=SecretStr("postgresql://app:dunlin-1@host/a"),
        callback_secret=SecretStr("godwit-" * 5),
        services={"stock": "https://ada:knot-knot@host"},
    )
    assert redact(f"wagtail-key dunlin-1 {'godwit-' * 5} knot-knot") == " ".join([HIDDEN] * 4)


@pytest.mark.parametrize(
    "error",
    [PermanentFault("c", "at https://a:swan@h"), Unreachable("https://a:swan@h"), UsageError("https://a:swan@h")],
)
def test_errors_of_our_own_hold_no_secret(error: Exception) -> None:
    assert "swan" not in f"{error} {error!r}"


@pytest.mark.failure(112)
def test_failure_that_temporal_keeps_holds_no_secret_nor_do_its_causes() -> None:
    error = ValueError("at https://a:swan@outside")
    error.__cause__ = RuntimeError("at https://a:swan@inside")
    converter = new_plugin().data_converter
    assert converter is not None
    failure = Failure()
    converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    assert "outside" in failure.message
    assert "inside" in failure.cause.message
    assert "swan" not in str(failure)


@pytest.mark.failure(112)
def test_logs_hold_no_secret_in_text_names_or_tracebacks(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging("DEBUG")
        log = logging.getLogger("somebody.else")
        try:
            raise RuntimeError("at https://a:swan@h")
        except RuntimeError:
            log.exception("failed with %s", {"password": "swan"}, extra={"token": "swan"})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert "swan" not in said
