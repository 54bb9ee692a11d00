"""What a service's answer, or the lack of one, means: the table of `activities/meanings.py`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from activities.http import body_of, fault_of_answer, fault_of_transport, new_client
from domain.faults import (
    Fault,
    NoAccess,
    NotSent,
    OvertakenFault,
    PermanentFault,
    StillAtWork,
    TransientFault,
    UnknownOutcome,
)


def answer(status: int, code: str | None = None, **headers: str) -> httpx.Response:
    """An answer of the services' own shape, or without any body."""
    body = {"error": {"code": code, "message": "says the service"}} if code else None
    return httpx.Response(status, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_is_no_fault(status: int) -> None:
    assert fault_of_answer(httpx.Response(status)) is None


@pytest.mark.failure(27)
@pytest.mark.demand("C5")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, PermanentFault),
        (401, NoAccess),
        (402, PermanentFault),
        (403, NoAccess),
        (404, PermanentFault),
        (407, NoAccess),
        (408, TransientFault),
        (409, PermanentFault),
        (410, PermanentFault),
        (412, OvertakenFault),
        (422, PermanentFault),
        (425, TransientFault),
        (429, TransientFault),
        (500, UnknownOutcome),
        (501, UnknownOutcome),
        (502, UnknownOutcome),
        (503, TransientFault),
        (504, UnknownOutcome),
        (599, UnknownOutcome),
        (302, UnknownOutcome),
    ],
)
def test_status_is_sorted_once(status: int, kind: type[Fault]) -> None:
    assert type(fault_of_answer(answer(status, "some_code"))) is kind
    assert type(fault_of_answer(answer(status))) is kind


@pytest.mark.failure(79)
@pytest.mark.demand("C5")
@pytest.mark.parametrize("status", [409, 425, 400, 500])
def test_twin_that_is_still_worked_on_may_be_done(status: int) -> None:
    assert type(fault_of_answer(answer(status, "in_progress"))) is StillAtWork


@pytest.mark.demand("C5", "G1")
def test_permanent_fault_carries_the_services_own_code_and_message() -> None:
    fault = fault_of_answer(answer(402, "card_declined"))
    assert isinstance(fault, PermanentFault)
    assert fault.code == "card_declined"
    assert "402 card_declined: says the service" in str(fault)


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b'"text"', b'{"error": "text"}', b'{"error": {"code": "x"}}', b"\xff\xfe"]
)
def test_answer_of_another_shape_is_named_by_its_status(content: bytes) -> None:
    fault = fault_of_answer(httpx.Response(404, content=content))
    assert isinstance(fault, PermanentFault)
    assert fault.code == "http_404"
    assert "Not Found" in str(fault)


@pytest.mark.failure(84)
def test_long_words_of_a_service_are_cut() -> None:
    fault = fault_of_answer(httpx.Response(400, json={"error": {"code": "c" * 1000, "message": "m" * 5000}}))
    assert isinstance(fault, PermanentFault)
    assert len(fault.code) == 100
    assert len(str(fault)) < 700


# --- Retry-After ----------------------------------------------------------------------------------------------


@pytest.mark.demand("C5")
@pytest.mark.parametrize(("status", "value", "wish"), [(429, "7", 7), (503, "1", 1), (500, "120", 120)])
def test_retry_after_in_seconds_is_the_services_wish(status: int, value: str, wish: int) -> None:
    fault = fault_of_answer(answer(status, Retry_After=value))
    assert isinstance(fault, TransientFault)
    assert fault.retry_after == timedelta(seconds=wish)


@pytest.mark.demand("C5")
def test_retry_after_as_a_date_is_the_time_until_then() -> None:
    then = datetime.now(UTC) + timedelta(hours=1)
    fault = fault_of_answer(answer(503, Retry_After=format_datetime(then, usegmt=True)))
    assert isinstance(fault, TransientFault)
    assert fault.retry_after is not None
    assert timedelta(minutes=59) < fault.retry_after <= timedelta(hours=1)


@pytest.mark.failure(68)
@pytest.mark.demand("C4", "C5")
def test_retry_after_date_is_measured_by_the_services_clock() -> None:
    """The two clocks may be years apart; only the service's own two stamps are compared."""
    said_at = "Wed, 21 Oct 2015 07:28:00 GMT"
    fault = fault_of_answer(answer(503, Retry_After="Wed, 21 Oct 2015 07:28:30 GMT", Date=said_at))
    assert isinstance(fault, TransientFault)
    assert fault.retry_after == timedelta(seconds=30)


@pytest.mark.parametrize("value", ["0", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_retry_after_that_is_over_asks_for_no_wait(value: str) -> None:
    fault = fault_of_answer(answer(503, Retry_After=value))
    assert isinstance(fault, TransientFault)
    assert not fault.retry_after


@pytest.mark.parametrize("value", ["", "soon", "-5", "1.5", "Wed, 21 Oct", "21 Oct 2015 07:28:00 -0000"])
def test_retry_after_that_makes_no_sense_is_no_wish(value: str) -> None:
    fault = fault_of_answer(answer(429, Retry_After=value))
    assert isinstance(fault, TransientFault)
    assert fault.retry_after is None


def test_permanent_and_overtaken_faults_take_no_notice_of_retry_after() -> None:
    assert type(fault_of_answer(answer(400, Retry_After="5"))) is PermanentFault
    assert type(fault_of_answer(answer(412, Retry_After="5"))) is OvertakenFault


@pytest.mark.demand("C5")
def test_twin_without_a_wish_is_waited_for_a_second() -> None:
    fault = fault_of_answer(answer(409, "in_progress"))
    assert isinstance(fault, TransientFault)
    assert fault.retry_after == timedelta(seconds=1)


# --- no answer ------------------------------------------------------------------------------------------------


@pytest.mark.demand("C5")
@pytest.mark.parametrize(
    "error", [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol]
)
def test_what_was_certainly_not_sent_is_transient(error: type[httpx.TransportError]) -> None:
    fault = fault_of_transport(error("no route"))
    assert type(fault) is NotSent
    assert f"{error.__name__}: no route" in str(fault)


@pytest.mark.failure(26)
@pytest.mark.demand("C5", "C12")
@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout,
        httpx.WriteTimeout,
        httpx.ReadError,
        httpx.WriteError,
        httpx.RemoteProtocolError,
        httpx.DecodingError,
        httpx.CloseError,
        httpx.TooManyRedirects,
    ],
)
def test_what_may_have_been_sent_has_an_unknown_outcome(error: type[httpx.HTTPError]) -> None:
    assert type(fault_of_transport(error(""))) is UnknownOutcome  # type: ignore[call-arg]
    assert str(fault_of_transport(error(""))) == error.__name__  # type: ignore[call-arg]


@pytest.mark.demand("C5")
@pytest.mark.parametrize("content", [b"", b"<html>", b"[1]", b'"text"', b"null"])
def test_success_that_can_not_be_read_has_an_unknown_outcome(content: bytes) -> None:
    with pytest.raises(UnknownOutcome):
        body_of(httpx.Response(200, content=content))


def test_success_is_its_json_object() -> None:
    assert body_of(httpx.Response(200, json={"id": 1})) == {"id": 1}


@pytest.mark.demand("E1")
async def test_the_client_follows_no_redirect_and_repeats_nothing_by_itself() -> None:
    async with new_client() as client:
        assert client.follow_redirects is False
        transport = client._transport
        assert isinstance(transport, httpx.AsyncHTTPTransport)
        assert transport._pool._retries == 0
