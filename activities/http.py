"""The edge to services that speak HTTP: one factory for clients, a bounded exchange, and what can go wrong, sorted."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import httpx

from activities.meanings import FAULTS, Meaning, Meanings, meaning_of
from domain.faults import AnswerTooLong, Fault, NotSent, PermanentFault, StillAtWork, TransientFault, UnknownOutcome
from domain.json_text import read_json
from domain.messages import MOST_PAUSE_S, Json
from domain.text import clean

MOST_BYTES = 256 * 1024
"""Longest answer that is read: results are kept in the store and pass through Temporal's histories."""

_MOST_PAUSE = timedelta(seconds=MOST_PAUSE_S)
_TWIN_PAUSE = timedelta(seconds=1)
"""Pause while a twin of the request is being worked on, where the service names none."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Certainly nothing reached the service. Any other transport error leaves the outcome unknown."""

STAMP = "stamp"
"""Extension of a request: is called with it at the very moment at which it is sent."""

ErrorReader = Callable[[Json], tuple[str, str]]
"""Takes code and message out of the body of an error answer; raises KeyError or TypeError for one of another shape."""


def new_client(*, tls: ssl.SSLContext | bool = True, most_connections: int = 100) -> httpx.AsyncClient:
    """A client without retries or redirects of its own: the durable budget owns the retries."""
    limits = httpx.Limits(max_connections=most_connections)
    transport = httpx.AsyncHTTPTransport(verify=tls, retries=0, limits=limits)
    return httpx.AsyncClient(transport=transport, follow_redirects=False, event_hooks={"request": [_stamp]})


async def _stamp(request: httpx.Request) -> None:
    if (stamp := request.extensions.get(STAMP)) is not None:
        stamp(request)


async def exchange(client: httpx.AsyncClient, request: httpx.Request, *, reads: bool = True) -> httpx.Response:
    """Send a request and read its answer, up to a bound.

    `reads`: False where the status of a success says all: then its body is not looked at, whatever it is.

    Raises:
        AnswerTooLong: The answer to a success is longer; what was asked for is done.
        httpx.HTTPError: As the client raises it.
    """
    response = await client.send(request, stream=True)
    try:
        content = await _content(response) if reads or not response.is_success else b""
    finally:
        await response.aclose()
    headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() not in _OF_THE_WIRE]
    return httpx.Response(response.status_code, headers=headers, content=content)


async def _content(response: httpx.Response) -> bytes:
    content = b""
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > MOST_BYTES:
            if response.is_success and response.status_code != httpx.codes.ACCEPTED:
                raise AnswerTooLong(f"{response.status_code} with an answer of more than {MOST_BYTES} bytes")
            return b""
    return content


_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def fault_of_transport(error: httpx.HTTPError) -> Fault:
    """The fault that a transport error stands for."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return NotSent(what) if isinstance(error, _NOT_SENT) else UnknownOutcome(what)


def error_in(body: Json) -> tuple[str, str]:
    """Code and message of an error in the shape `{"error": {"code": …, "message": …}}`."""
    return body["error"]["code"], body["error"]["message"]


def fault_of_answer(response: httpx.Response, *tables: Meanings, reader: ErrorReader = error_in) -> Fault | None:
    """The fault that an answer stands for; None if it is a success. `tables`: as `meaning_of` takes them."""
    code, message = ("", "") if response.is_success else error_of(response, reader)
    meaning = meaning_of(response.status_code, code, *tables)
    if meaning is Meaning.SUCCESS:
        return None
    kind, text = FAULTS[meaning], f"{response.status_code} {code or meaning}: {message or response.reason_phrase}"
    if kind is PermanentFault:
        return PermanentFault(code or f"http_{response.status_code}", text)
    if issubclass(kind, TransientFault):
        return kind(text, _retry_after(response) or (_TWIN_PAUSE if kind is StillAtWork else None))
    return kind(text)


def error_of(response: httpx.Response, reader: ErrorReader = error_in) -> tuple[str, str]:
    """The service's own code and message, shortened; or what can be said without them."""
    try:
        code, message = reader(read_object(response.content))
        return clean(str(code))[:100], clean(str(message))[:500]
    except (ValueError, KeyError, TypeError):
        return f"http_{response.status_code}", response.reason_phrase


def body_of(response: httpx.Response) -> Json:
    """The JSON object of a success; empty for a 202 without one, as the answer is to come.

    Raises:
        UnknownOutcome: It is none that can be kept, so what happened can't be told.
    """
    try:
        return read_object(response.content)
    except ValueError as error:
        if response.status_code == httpx.codes.ACCEPTED:
            return {}
        raise UnknownOutcome(f"{response.status_code} with an answer that can't be read: {error}") from error


def read_object(text: bytes) -> Json:
    """The JSON object that a service sent, without what PostgreSQL can't store.

    Raises:
        ValueError: It is none, or one that `read_json` refuses.
    """
    body = read_json(text.decode(json.detect_encoding(text), "surrogatepass"), cleans=True)
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")
    return body


def _retry_after(response: httpx.Response) -> timedelta | None:
    """The pause that the service wishes for: in seconds, or until a date, which is counted on its own clock."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        digits = value.lstrip("0")
        return _MOST_PAUSE if len(digits) > _MOST_DIGITS else min(_MOST_PAUSE, timedelta(seconds=int(digits or "0")))
    try:
        said_at = response.headers.get("Date")
        now = parsedate_to_datetime(said_at) if said_at else datetime.now(UTC)
        return max(timedelta(0), min(_MOST_PAUSE, parsedate_to_datetime(value) - now))
    except (ValueError, TypeError, OverflowError):
        return None


_MOST_DIGITS = 9
