"""What calls come to: each way in which they can end, as the outcome that is written of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from activities.agent import Action, Agent, AnswersLater, Found
from activities.call import LEAST_S, Call
from activities.draining import LetGo
from activities.http import fault_of_answer
from domain.error_words import first_problem
from domain.faults import (
    AnswerTooLong,
    Fault,
    NoAccess,
    NoCredential,
    OutOfTime,
    OvertakenFault,
    PermanentFault,
    TransientFault,
    UnknownOutcome,
)
from domain.json_text import BadJson, dumped
from domain.messages import MOST_PAUSE_S, AgentRequest, Failed, GaveUp, Json, Outcome, Overtaken, StoodDown, TimedOut
from domain.text import clean

_LET_GO_S = 10.0
"""A call that was let go may go on at the service, until the deadline that it was told: nobody asks before, or before
this is over."""

_LATE_WORKER_S = 2.0
"""Pause after a request that reached its worker too late for a call."""


class Lacking(Exception):
    """This worker can't make the call, and has made none: says of which part, and what it lacks."""

    def __init__(self, part: str, of: str) -> None:
        super().__init__(f"{part}: {of}")
        self.part, self.of = part, of


Ending = Lacking | LetGo | PermanentFault | OvertakenFault | OutOfTime
"""After these no other call is made for the request, whatever is left of its allowance."""


def ended_by(error: Ending, call: Call, request: AgentRequest, last: str) -> Outcome:
    """What a request comes to that one of these has ended. `last`: what came of the call before, if there was one."""
    match error:
        case Lacking():
            return StoodDown.for_want(error.part, error.of, request.epoch)
        case LetGo():
            cause = f"the worker is shutting down (during call {call.sent})"
            return StoodDown(cause=cause, sent=call.sent, retry_after_s=max(0.0, min(call.time_left, _LET_GO_S)))
        case PermanentFault():
            unknown = call.unknown or isinstance(error, AnswerTooLong)
            return Failed(code=clean(error.code), message=words(error), unknown_before=unknown)
        case OvertakenFault():
            return Overtaken(cause=words(error))
        case OutOfTime() if call.sent:
            return TimedOut(cause=f"{words(error)} (last: {last})", called=True)
        case OutOfTime():
            return StoodDown(cause=words(error), sent=0, retry_after_s=_LATE_WORKER_S)


def in_vain(fault: TransientFault, call: Call, request: AgentRequest) -> Outcome:
    """What calls come to of which no other fits into the allowance or the time."""
    cause = words(fault)
    if not call.sent:
        return StoodDown.for_want(f"service {request.service}", cause, request.epoch, unreachable=True)
    if call.time_left < LEAST_S:
        return TimedOut(cause=f"the deadline came during call {call.sent}: {cause}", called=True)
    no = "no call is left" if call.left < 1 else "no time for another call"
    text = f"{no} after {call.sent}, last: {cause}"
    return GaveUp(cause=text, unknown=call.unknown, sent=call.sent, retry_after_s=seconds(fault.retry_after))


def no_access(fault: NoAccess, call: Call, request: AgentRequest) -> Outcome:
    """What a request comes to whose credential is refused, or not there: a deployment can mend that, so it costs the
    task nothing. Of a refusal the breaker hears too: not every task that waits need knock."""
    gave = StoodDown.for_want(f"service {request.service}", words(fault), request.epoch)
    return gave.model_copy(update={"sent": call.sent, "unreachable": not isinstance(fault, NoCredential)})


def result_of(found: Found, spec: Action, agent: Agent) -> Json:
    """What the service's word on a key comes to, as if it had just answered.

    Raises:
        Fault: It refused or undid it, or did it with a result that can't be read. AnswersLater: It is still to come.
    """
    if found.state == "undone":
        raise PermanentFault("undone", "the service says that it was undone")
    if found.state == "refused":
        fault = fault_of_answer(httpx.Response(found.status, json=found.body), agent.means, reader=agent.error_in)
        raise fault or PermanentFault("refused", "the service says that it refused it")
    if spec.result is None:
        return {}
    try:
        return kept(spec.result.model_validate(found.body))
    except ValidationError as error:
        if found.status == httpx.codes.ACCEPTED:
            raise AnswersLater from error
        raise UnknownOutcome(f"done, with an unexpected body: {first_problem(error)}") from error


def kept(result: Any) -> Json:
    """A result as it is kept; what JSON or PostgreSQL can't say is no result."""
    try:
        return dumped(result) if isinstance(result, BaseModel) else {}
    except BadJson as error:
        raise UnknownOutcome(f"a success with a result that can't be kept: {error}") from error


def words(error: Fault) -> str:
    """What a fault says, as it can be kept."""
    return clean(str(error))[:1000]


def seconds(wish: timedelta | None) -> float:
    """A pause that a service wishes for."""
    return min(MOST_PAUSE_S, max(0.0, wish.total_seconds())) if wish else 0.0
