"""The edge to the remote services: one factory for HTTP clients, and one table that sorts what can go wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from domain.faults import (
    AnswerTooLong,
    Fault,
    OvertakenFault,
    PermanentFault,
    StillAtWork,
    TransientFault,
    UnknownOutcome,
)
from domain.json_text import read_json
from domain.messages import MOST_PAUSE_S, Json
from domain.text import clean

_STATUS: dict[int, type[Fault]] = {
    401: TransientFault,  # our credentials, not the task: a deployment can mend it
    403: TransientFault,
    407: TransientFault,
    408: TransientFault,  # it says itself that it did not start
    409: PermanentFault,  # but see _AT_WORK: a twin of this request is still being worked on
    412: OvertakenFault,  # the fencing token is older than one that it has seen
    425: TransientFault,
    429: TransientFault,
    500: UnknownOutcome,
    502: UnknownOutcome,
    503: TransientFault,
    504: UnknownOutcome,
}
"""What a status means. Any other 4xx is permanent; any other 5xx has an unknown outcome."""

_MOST_PAUSE = timedelta(seconds=MOST_PAUSE_S)

MOST_BYTES = 256 * 1024
"""Longest answer that is read: results are kept in the store and pass through Temporal's histories."""

_AT_WORK = "in_progress"
_TWIN_PAUSE = timedelta(seconds=1)
"""Pause while a twin of the request is being worked on, where the service names none."""

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Certainly nothing reached the service. Any other transport error leaves the outcome unknown."""


def new_client() -> httpx.AsyncClient:
    """A client without retries or redirects of its own: the durable budget owns the retries."""
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(retries=0, limits=httpx.Limits(max_connections=100)),
        follow_redirects=False,
    )


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
    return TransientFault(what) if isinstance(error, _NOT_SENT) else UnknownOutcome(what)


def fault_of_answer(response: httpx.Response) -> Fault | None:
    """The fault that an answer stands for; None if it is a success."""
    if response.is_success:
        return None
    code, message = _said(response)
    default: type[Fault] = PermanentFault if 400 <= response.status_code < 500 else UnknownOutcome
    kind = StillAtWork if code == _AT_WORK else _STATUS.get(response.status_code, default)
    text = f"{response.status_code} {code}: {message}"
    if kind is PermanentFault:
        return PermanentFault(code, text)
    if issubclass(kind, TransientFault):
        return kind(text, _retry_after(response) or (_TWIN_PAUSE if kind is StillAtWork else None))
    return kind(text)


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


def code_of(response: httpx.Response) -> str:
    """The service's own code of an error."""
    return _said(response)[0]


def _said(response: httpx.Response) -> tuple[str, str]:
    """The service's own code and message, shortened; or what can be said without them."""
    try:
        error: Any = read_object(response.content)["error"]
        return clean(str(error["code"]))[:100], clean(str(error["message"]))[:500]
    except (ValueError, KeyError, TypeError):
        return f"http_{response.status_code}", response.reason_phrase


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
