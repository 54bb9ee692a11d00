"""What must never be shown, taken out of any text: by the place that it stands in, and by its value where it is known.

Logs, errors, events, alerts, `doctor` and Temporal's failures all pass through `redact`. The values are those of this
process's settings; they are known to the module, as a text that quotes one can come from anywhere.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from urllib.parse import parse_qsl, quote, quote_plus, unquote

HIDDEN = "[redacted]"

_LEAST_VALUE = 6
"""A shorter value is part of other words, and is taken out only where it stands in its place."""

_WORD = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|key[_-]?data|credential"
_NAME = rf"(?:{_WORD})[\w-]{{0,40}}"
_HEADER = r"(?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token"
_PLACES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), shown)
    for pattern, shown in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", HIDDEN),
        (r"(://)[^\s/?#\"'<>]*@", rf"\1{HIDDEN}@"),
        (r"((?::|%3a)(?:/|%2f){2})[^\s/?#\"'<>]*%40", rf"\1{HIDDEN}@"),
        (
            rf"((?:{_HEADER})\\?[\"']?\s*[:=]\s*(?:\\?[\"'])?)(?:(?:basic|bearer|digest)\s+)?[^\s,\"'\\]+",
            rf"\1{HIDDEN}",
        ),
        (r"\b(bearer\s+)(?=[^\s\"'\\]*[0-9._-])[^\s\"',\\]{8,}", rf"\1{HIDDEN}"),
        (r"\beyJ[\w-]+\.[\w-]+\.[\w-]*", HIDDEN),
        (rf"({_NAME}\"\s*:\s*\")(?:[^\"\\]|\\.)+", rf"\1{HIDDEN}"),
        (rf"({_NAME}'\s*:\s*')(?:[^'\\]|\\.)+", rf"\1{HIDDEN}"),
        (rf"({_NAME}\s*=\s*')(?:[^'\\]|\\.)+", rf"\1{HIDDEN}"),
        (rf"({_NAME}\s*=\s*\\?\")[^\"\\]+", rf"\1{HIDDEN}"),
        (rf"({_NAME}\s?=)[^\s,;&\"'()\\]+", rf"\1{HIDDEN}"),
    )
)
_SECRET_NAME = re.compile(rf"{_WORD}|{_HEADER}|dsn|database_url", re.IGNORECASE)
_USERINFO = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*)@", re.IGNORECASE)
_QUOTED_PASSWORD = re.compile(r"\b(?:ssl)?password\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))", re.IGNORECASE)

_known: set[str] = set()


def know(values: Iterable[str]) -> None:
    """From now on these are taken out wherever they are quoted: as they are, percent-encoded, as JSON, as base64."""
    found = {form for value in values if len(value) >= _LEAST_VALUE for form in _forms(value)}
    if not found <= _known:
        _known.update(found)
        _by_value.cache_clear()


def forget(values: Iterable[str]) -> None:
    """These are secret no more, such as a token that has ended: what is known does not grow for ever."""
    _known.difference_update(form for value in values for form in _forms(value))
    _by_value.cache_clear()


def is_secret(name: str) -> bool:
    """Whether what has this name is secret, going by the name."""
    return bool(_SECRET_NAME.search(name))


def redact(text: str) -> str:
    """The text without anything secret."""
    if _known:
        text = _by_value().sub(HIDDEN, text)
    for pattern, shown in _PLACES:
        text = pattern.sub(shown, text)
    return text


def secrets_in(address: str) -> Iterator[str]:
    """What is secret in an address, of a service or a database, as a URL or as `key=value`."""
    if found := _USERINFO.match(address):
        user, _, password = found[1].partition(":")
        yield password or user
        if password:
            yield b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    yield from (value for name, value in parse_qsl(address.partition("?")[2]) if is_secret(name))
    for quoted, bare in _QUOTED_PASSWORD.findall(address.partition("?")[0]):
        yield quoted.replace("\\'", "'").replace("\\\\", "\\") or bare


def secrets_of(name: str, value: str) -> Iterator[str]:
    """What of a credential must never be shown: all of it, but of an address only what is secret in it."""
    if name.endswith("_url"):
        yield from secrets_in(value)
    elif name not in ("username", "client_id") and not name.endswith("_file"):
        yield value


def _forms(value: str) -> Iterator[str]:
    for plain in {value, unquote(value)}:
        yield from (plain, quote(plain, safe=""), quote(plain), quote_plus(plain))
        yield quote(plain, safe="").lower() if quote(plain, safe="") != plain else plain
        yield json.dumps(plain)[1:-1]
        yield repr(plain)[1:-1]
        yield b64encode(plain.encode()).decode()


@cache
def _by_value() -> re.Pattern[str]:
    return re.compile("|".join(re.escape(form) for form in sorted(_known, key=len, reverse=True)))
