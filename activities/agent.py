"""What an Agent is: one class a remote service, one method a call, and the loop that makes the calls.

An Agent's author writes methods marked `@action`, each of which sends one request and returns the answer. Everything
else is here: the stable key, the fencing token, the time left, the allowance, the sorting of faults, the pauses.
Repeating a call is safe because every retry of every attempt sends the same key.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeVar, get_type_hints

import httpx
from pydantic import BaseModel, ValidationError

from activities.clock import uptime
from activities.draining import Draining, LetGo
from activities.http import body_of, code_of, exchange, fault_of_answer, fault_of_transport
from domain.error_words import describe_error, first_problem
from domain.faults import (
    KEY_FORGOTTEN,
    AnswerTooLong,
    DefinitionError,
    Fault,
    OutOfTime,
    OvertakenFault,
    PermanentFault,
    StillAtWork,
    TransientFault,
    UnknownOutcome,
)
from domain.ids import undo_key
from domain.json_text import BadJson, dumped
from domain.messages import (
    MOST_PAUSE_S,
    AgentRequest,
    Completed,
    GaveUp,
    Json,
    Outcome,
    Overtaken,
    Refused,
    StoodDown,
    TimedOut,
)
from domain.text import clean

MARGIN_S = 0.05
"""Kept back from the time left, for the answer to be recorded."""

_LEAST_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0

_LET_GO_S = 10.0
"""A call that was let go may go on at the service, until the deadline that it was told: nobody asks before, or before
this is over."""

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class Found:
    """What a service says of a key that it was asked about: whether it stands, and the answer it gave then."""

    state: Literal["done", "refused", "undone"]
    status: int
    body: Json


class AnswersLater(Exception):
    """The service took the work and will answer by callback."""


class _Lacking(Exception):
    """This worker can't make the call, and has made none: says of which part, and what it lacks."""

    def __init__(self, part: str, of: str) -> None:
        super().__init__(f"{part}: {of}")
        self.part, self.of = part, of


def action(method: Method) -> Method:
    """Mark a method of an Agent as something that a step can ask for. It sends exactly one request."""
    method.is_action = True  # type: ignore[attr-defined]  # a mark that `actions` looks for
    return method


@dataclass(frozen=True)
class Action:
    """An Agent's method, as a definition sees it: `service.method`, and the models it takes and gives."""

    name: str
    service: str
    method: str
    request: type[BaseModel]
    result: type[BaseModel] | None
    keeps_tombstones: bool
    can_ask: bool


@dataclass
class Call:
    """The right to send requests for one step: its key, its token, its allowance, its deadline.

    `deadline` and `since` are on the clock of `uptime`; `left` counts the reservation down. `reads`: whether the step
    declares a result; if it does not, the status of a success is the answer, whatever comes with it.
    """

    base_url: str
    client: httpx.AsyncClient
    key: str
    keys: list[str]
    epoch: int
    deadline: float
    left: int
    since: float
    reads: bool = True
    callback_url: str | None = None
    sent: int = 0
    unknown: bool = False

    @property
    def age_s(self) -> float:
        """Seconds since a call may first have been sent whose effect may stand."""
        return uptime() - self.since

    @property
    def time_left(self) -> float:
        """Seconds until no new side effect may start."""
        return self.deadline - uptime() - MARGIN_S

    async def post(self, path: str, body: BaseModel) -> tuple[int, Json]:
        """Send the request of a step. Returns status and body of a success.

        Raises:
            OutOfTime: Too little time is left; nothing was sent.
            Fault: As sorted in `activities.http`.
        """
        return await self._send(path, body.model_dump(mode="json"), reads=self.reads)

    async def undo(self, path: str, body: BaseModel) -> None:
        """Send the undo of a step: it names the keys of the original, all generations."""
        await self._send(path, {**body.model_dump(mode="json"), "keys": self.keys}, reads=False)

    async def ask(self, path: str, unknown: str) -> tuple[int, Json] | None:
        """Ask what became of something; None if the service says 404 with the code `unknown`. Counts as a call.

        Any other 404 is of a gateway or a wrong address, and says nothing.
        """
        response = await self._exchange("GET", path, None, reads=True)
        if response.status_code == httpx.codes.NOT_FOUND and code_of(response) == unknown:
            return None
        fault = fault_of_answer(response)
        if fault is not None:
            raise fault if isinstance(fault, TransientFault) else TransientFault(str(fault))
        return response.status_code, body_of(response)

    async def _send(self, path: str, body: Json, *, reads: bool) -> tuple[int, Json]:
        response = await self._exchange("POST", path, body, reads=reads)
        fault = fault_of_answer(response)
        if fault is not None:
            raise fault
        return response.status_code, body_of(response) if reads else {}

    async def _exchange(self, method: str, path: str, body: Json | None, *, reads: bool) -> httpx.Response:
        if self.time_left < _LEAST_S:
            raise OutOfTime(f"{max(0.0, self.time_left):.3f} s left: too little for a call")
        if self.left < 1:
            raise TransientFault("the allowance of calls is spent")
        headers = {
            "Idempotency-Key": self.key,
            "X-Fencing-Token": str(self.epoch),
            "X-Time-Left-Ms": str(int(self.time_left * 1000)),
        }
        limits = httpx.Timeout(self.time_left, connect=self.time_left / 2)  # in time to say that nothing was sent
        request = self.client.build_request(method, self.base_url + path, json=body, headers=headers, timeout=limits)
        self.left -= 1
        self.sent += 1
        try:
            async with asyncio.timeout(self.time_left):
                return await exchange(self.client, request, reads=reads)
        except httpx.HTTPError as error:
            fault = fault_of_transport(error)
            self.sent -= not isinstance(fault, UnknownOutcome)
            raise fault from error
        except TimeoutError as error:
            raise UnknownOutcome("no answer within the time left") from error


class Agent:
    """Wraps one remote service.

    Attributes:
        service: Name of the service: selects its URL in the settings, and its task queue where it has one.
        remembers: How long the service remembers a key. After that nothing is sent again that may have been done.
        undoes_within: How long after the first call of a step the service still undoes it by its keys. After that no
            undo is sent: the service might have forgotten what there is to undo, and call that a success.
        keeps_tombstones: Whether an undo keeps a late original out. If not, steps must declare a quarantine.
    """

    service: ClassVar[str]
    remembers: ClassVar[timedelta] = timedelta(hours=24)
    undoes_within: ClassVar[timedelta] = timedelta(days=30)
    keeps_tombstones: ClassVar[bool] = True

    async def find(self, call: Call) -> Found | None:
        """Ask the service what became of `call.key`; None if it has never seen it.

        An Agent whose service can't be asked does not override this, and sends again with the same key.
        """
        raise NotImplementedError

    @classmethod
    def can_ask(cls) -> bool:
        """Whether the service can be asked by key."""
        return cls.find is not Agent.find

    @classmethod
    def actions(cls) -> list[Action]:
        """The actions of this Agent, by the marks and the type hints of its methods."""
        marked = [(n, m) for n, m in inspect.getmembers(cls, inspect.isfunction) if hasattr(m, "is_action")]
        return [_action(cls, name, method) for name, method in marked]


def _action(agent: type[Agent], name: str, method: Callable[..., Any]) -> Action:
    hints = get_type_hints(method)
    models = [h for n, h in hints.items() if n not in ("call", "return") and _is_model(h)]
    if len(models) != 1:
        raise DefinitionError(f"{agent.__name__}.{name} must take one Call and one pydantic model")
    result = hints.get("return")
    return Action(
        name=f"{agent.service}.{name}",
        service=agent.service,
        method=name,
        request=models[0],
        result=result if _is_model(result) else None,
        keeps_tombstones=agent.keeps_tombstones,
        can_ask=agent.can_ask(),
    )


def _is_model(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)


def setting_of(service: str) -> str:
    """The environment variable that holds a service's address."""
    return f"SAS_SERVICES__{service.upper()}"


class Agents:
    """The Agents of a process: makes the calls of a request, within its allowance and its deadline.

    Args:
        agents: The classes; services: base URL by service name.
        callback_url: Address, by idempotency key, for services that answer later.
        draining: The worker's end: no call begins after it has, and those that take too long then are let go.
    """

    def __init__(
        self,
        agents: list[type[Agent]],
        services: dict[str, str],
        client: httpx.AsyncClient,
        *,
        callback_url: Callable[[str], str] | None = None,
        draining: Draining | None = None,
    ) -> None:
        self._services, self._client, self._callback_url = services, client, callback_url
        self._draining = draining or Draining(timedelta(0))
        self._agents = {a.service: a() for a in agents}
        self.actions = {a.name: a for agent in agents for a in agent.actions()}

    async def carry_out(  # noqa: PLR0911 (a table of outcomes)
        self, request: AgentRequest, deadline: float, tell: Callable[[str], None] = lambda _: None
    ) -> Outcome:
        """Make the calls of a request until it is done, refused, out of calls or out of time.

        Args:
            request: What to do, and with how many calls.
            deadline: On the clock of `uptime`; no call starts after it.
            tell: Takes a line before each call: how the reservation counts down.

        Returns:
            What came of it; nothing is raised, neither for a service's fault nor for an Agent's bug.

        Raises:
            AnswersLater: The service took the work and will answer by callback.
        """
        try:
            spec, url, body = self._wanted(request)
        except _Lacking as lack:
            return StoodDown.for_want(lack.part, lack.of, request.epoch)
        call = self._call(spec, url, request, deadline)
        cause, pause, again_at = "no call was made", _FIRST_PAUSE_S, uptime()
        while True:
            if self._draining.begun.is_set():
                text = f"the worker is shutting down ({cause})"
                return StoodDown(cause=text, sent=call.sent, retry_after_s=max(0.0, again_at - uptime()))
            tell(f"call {request.calls - call.left + 1}, {call.left} of {request.calls} left")
            try:
                async with self._draining.call():
                    return Completed(result=await self._once(spec, call, request, body), calls=call.sent)
            except LetGo:
                text = f"the worker is shutting down (during call {call.sent})"
                return StoodDown(cause=text, sent=call.sent, retry_after_s=max(0.0, min(call.time_left, _LET_GO_S)))
            except _Lacking as lack:
                return StoodDown.for_want(lack.part, lack.of, request.epoch)
            except PermanentFault as fault:
                unknown = call.unknown or isinstance(fault, AnswerTooLong)
                return Refused(code=clean(fault.code), message=_words(fault), unknown_before=unknown)
            except OvertakenFault as fault:
                return Overtaken(cause=_words(fault))
            except OutOfTime as fault:
                if not call.sent:
                    return StoodDown(cause=_words(fault), sent=0, retry_after_s=_LONGEST_PAUSE_S)
                return TimedOut(cause=f"{_words(fault)} (last: {cause})", called=True)
            except TransientFault as fault:
                call.unknown = call.unknown or isinstance(fault, UnknownOutcome)
                cause, wish_s = _words(fault), _seconds(fault.retry_after)
                wait = max(pause * random.uniform(0.5, 1.0), wish_s, _spread(call, fault))  # noqa: S311 (jitter)
            if call.left < 1 or wait > call.time_left - _LEAST_S:
                return _in_vain(call, request, cause, wish_s)
            pause, again_at = min(pause * 2, _LONGEST_PAUSE_S), uptime() + wait
            await self._wait(wait)

    def _wanted(self, request: AgentRequest) -> tuple[Action, str, BaseModel]:
        """The action that is asked for, the address of its service, and its request; raises `_Lacking`."""
        spec = self.actions.get(request.action)
        if spec is None:
            raise _Lacking(request.action, "a worker has no such action: give it this release")
        url = self._services.get(spec.service)
        if url is None:
            raise _Lacking(f"service {spec.service}", f"a worker has no address of it: set {setting_of(spec.service)}")
        try:
            return spec, url, spec.request.model_validate(request.body)
        except ValidationError as error:
            raise _Lacking(spec.name, f"a worker can't read its request: {first_problem(error)}") from error

    async def _once(self, spec: Action, call: Call, request: AgentRequest, body: BaseModel) -> Json:
        """One round. What the Agent's own code raises is a fault too: unknown, unless nothing was ever sent.

        Raises:
            Fault: As the service or the Agent has it. _Lacking: This release of the Agent fails before it calls.
        """
        try:
            return await self._ask_or_send(self._agents[spec.service], spec, call, request, body)
        except (Fault, AnswersLater):
            raise
        except Exception as error:
            text = f"the Agent raised {describe_error(error)}"
            raise UnknownOutcome(text) if call.sent else _Lacking(spec.name, text) from error

    async def _ask_or_send(
        self, agent: Agent, spec: Action, call: Call, request: AgentRequest, body: BaseModel
    ) -> Json:
        """Where an earlier call may have had its effect, ask first; then send, if there is need to.

        Nothing is sent that is too old for the service to know it by its key.
        """
        if request.undo and call.age_s > agent.undoes_within.total_seconds():
            raise PermanentFault(KEY_FORGOTTEN, _too_old(agent, request))
        if call.unknown and not request.undo:
            found = await agent.find(call) if agent.can_ask() else None
            if found is not None:
                call.unknown = False
                return _answer_of(found, spec)
            if call.age_s > agent.remembers.total_seconds():
                message = f"an earlier call may have been done, and {spec.service} remembers keys for {agent.remembers}"
                word = f"resubmit {request.task_id} --no-effect {request.step} --evidence TEXT --reason TEXT"
                raise PermanentFault(
                    KEY_FORGOTTEN, f"{message}: look there, and if it had no effect, `python starter.py {word}`"
                )
            call.unknown = not agent.can_ask()  # never seen: whatever it answers to this key now is its first word
            if call.left < 1:
                raise TransientFault("the service has not seen the key; no call is left to send it")
        result = await getattr(agent, spec.method)(call, body)
        return _kept(result) if isinstance(result, BaseModel) else {}

    async def _wait(self, seconds: float) -> None:
        """Pause, but not beyond the moment at which the worker begins to drain."""
        try:
            async with asyncio.timeout(seconds):
                await self._draining.begun.wait()
        except TimeoutError:
            return

    def without_address(self, services: set[str]) -> list[str]:
        """The settings that are missing for calls to these services."""
        return sorted(setting_of(s) for s in services if s not in self._services)

    def _call(self, spec: Action, url: str, request: AgentRequest, deadline: float) -> Call:
        key = undo_key(request.task_id, request.step, request.generation) if request.undo else request.keys[-1]
        return Call(
            base_url=url.rstrip("/"),
            client=self._client,
            key=key,
            keys=request.keys,
            epoch=request.epoch,
            deadline=deadline,
            left=request.calls,
            since=uptime() - request.key_age_s,
            reads=spec.result is not None,
            unknown=request.unknown,
            callback_url=self._callback_url(key) if self._callback_url else None,
        )


def _spread(call: Call, fault: Fault) -> float:
    """Seconds until the next call, where the service is still at work on an earlier one; 0 where it is not."""
    return call.time_left / (call.left + 1) if isinstance(fault, StillAtWork) else 0.0


def _in_vain(call: Call, request: AgentRequest, cause: str, wish_s: float) -> Outcome:
    """What came of calls that ended without an answer that counts."""
    if not call.sent:
        return StoodDown.for_want(f"service {request.service}", cause, request.epoch, unreachable=True)
    if call.time_left < _LEAST_S:
        return TimedOut(cause=f"the deadline came during call {call.sent}: {cause}", called=True)
    no = "no call is left" if call.left < 1 else "no time for another call"
    text = f"{no} after {call.sent}, last: {cause}"
    return GaveUp(cause=text, unknown=call.unknown, sent=call.sent, retry_after_s=wish_s)


def _answer_of(found: Found, spec: Action) -> Json:
    """What the service's word on a key comes to, as if it had just answered."""
    if found.state == "undone":
        raise PermanentFault("undone", "the service says that it was undone")
    if found.state == "refused":
        fault = fault_of_answer(httpx.Response(found.status, json=found.body))
        raise fault or PermanentFault("refused", "the service says that it refused it")
    if spec.result is None:
        return {}
    try:
        return _kept(spec.result.model_validate(found.body))
    except ValidationError as error:
        if found.status == httpx.codes.ACCEPTED:
            raise AnswersLater from error
        raise UnknownOutcome(f"done, with an unexpected body: {first_problem(error)}") from error


def _kept(result: BaseModel) -> Json:
    """A result as it is kept; what JSON or PostgreSQL can't say is no result."""
    try:
        return dumped(result)
    except BadJson as error:
        raise UnknownOutcome(f"a success with a result that can't be kept: {error}") from error


def _too_old(agent: Agent, request: AgentRequest) -> str:
    message = f"{agent.service} undoes by key for {agent.undoes_within}, and the first call is older"
    word = f"repair {request.task_id} {request.step} --done-by-hand --evidence TEXT --reason TEXT"
    return f"{message}: undo it there, then `python starter.py {word}`"


def _words(error: Exception) -> str:
    """What an error says, as it can be kept."""
    return clean(str(error))[:1000]


def _seconds(duration: timedelta | None) -> float:
    return min(MOST_PAUSE_S, max(0.0, duration.total_seconds())) if duration else 0.0
