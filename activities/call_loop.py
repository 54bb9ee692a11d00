"""The loop that makes the calls of one request, within its allowance and its deadline.

Retries have this one owner: an Agent's method sends once, and neither the HTTP client nor Temporal repeats it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Self

from pydantic import BaseModel, SecretStr, ValidationError

from activities.agent import Action, Agent, AnswersLater
from activities.call import LEAST_S, Call
from activities.clock import uptime
from activities.draining import Draining, LetGo
from activities.outcomes import Lacking, ended_by, in_vain, kept, no_access, result_of, seconds, words
from activities.services import Service
from domain.error_words import describe_error, first_problem
from domain.faults import (
    KEY_FORGOTTEN,
    Fault,
    NoAccess,
    OutOfTime,
    OvertakenFault,
    PermanentFault,
    StillAtWork,
    TransientFault,
    UnknownOutcome,
)
from domain.ids import undo_key
from domain.messages import AgentRequest, Completed, Json, Outcome, StoodDown

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


class Agents:
    """The Agents of a process, and their connections, which end with its context.

    Args:
        agents: The classes; services: base URL by service name; access: credentials by name, by service name.
        callback_url: Address, by idempotency key, for services that answer later.
        draining: The worker's end: no call begins after it has, and those that take too long then are let go.
    """

    def __init__(
        self,
        agents: list[type[Agent]],
        services: Mapping[str, str],
        access: Mapping[str, Mapping[str, SecretStr]] | None = None,
        *,
        callback_url: Callable[[str], str] | None = None,
        draining: Draining | None = None,
    ) -> None:
        self._callback_url = callback_url
        self._services = {
            a.service: Service(a, services.get(a.service), (access or {}).get(a.service, {})) for a in agents
        }
        self._draining = draining or Draining(timedelta(0))
        self._agents = {a.service: a() for a in agents}
        self.actions = {a.name: a for agent in agents for a in agent.actions()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for agent in self._agents.values():
            await agent.close()
        for service in self._services.values():
            await service.close()

    def missing(self, services: Iterable[str]) -> list[str]:
        """What is missing for calls to these services: settings, each with what is wrong."""
        return [problem for s in sorted(services) for problem in self._services[s].missing()]

    async def carry_out(
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
            spec, body = self._wanted(request)
        except Lacking as lack:
            return StoodDown.for_want(lack.part, lack.of, request.epoch)
        call = self._call(spec, request, deadline)
        cause, pause_s, again_at, turned_away = "no call was made", _FIRST_PAUSE_S, uptime(), False
        while True:
            if self._draining.begun.is_set():
                text = f"the worker is shutting down ({cause})"
                return StoodDown(cause=text, sent=call.sent, retry_after_s=max(0.0, again_at - uptime()))
            tell(f"call {request.calls - call.left + 1}, {call.left} of {request.calls} left")
            try:
                async with self._draining.call():
                    return Completed(result=await self._once(spec, call, request, body), calls=call.sent)
            except (Lacking, LetGo, PermanentFault, OvertakenFault, OutOfTime) as end:
                return ended_by(end, call, request, cause)
            except NoAccess as fault:  # once more, as a credential may have been replaced just now
                cause, wait_s = words(fault), pause_s
                if turned_away or call.left < 1 or wait_s > call.time_left - LEAST_S:
                    return no_access(fault, call, request)
                turned_away = True
            except TransientFault as fault:
                call.unknown = call.unknown or isinstance(fault, UnknownOutcome)
                cause, wait_s = words(fault), _pause_after(fault, call, pause_s)
                if call.left < 1 or wait_s > call.time_left - LEAST_S:
                    return in_vain(fault, call, request)
            pause_s, again_at = min(pause_s * 2, _LONGEST_PAUSE_S), uptime() + wait_s
            await self._wait(wait_s)

    def _wanted(self, request: AgentRequest) -> tuple[Action, BaseModel | None]:
        """The action that is asked for, and its request; raises `Lacking`."""
        spec = self.actions.get(request.action)
        if spec is None:
            raise Lacking(request.action, "a worker has no such action: give it this release")
        if problem := self._services[spec.service].address_problem():
            raise Lacking(f"service {spec.service}", f"a worker can't call it: {problem}")
        try:
            return spec, spec.request.model_validate(request.body) if spec.request else None
        except ValidationError as error:
            raise Lacking(spec.name, f"a worker can't read its request: {first_problem(error)}") from error

    def _call(self, spec: Action, request: AgentRequest, deadline: float) -> Call:
        key = undo_key(request.task_id, request.step, request.generation) if request.undo else request.keys[-1]
        return Call(
            agent=self._agents[spec.service],
            service=self._services[spec.service],
            task_id=request.task_id,
            step=request.step,
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

    async def _once(self, spec: Action, call: Call, request: AgentRequest, body: BaseModel | None) -> Json:
        """One round. What the Agent's own code raises is a fault too: unknown, unless nothing was ever sent.

        Raises:
            Fault: As the service or the Agent has it. Lacking: This release of the Agent fails before it calls.
        """
        try:
            return await self._ask_or_send(call.agent, spec, call, request, body)
        except (Fault, AnswersLater):
            raise
        except Exception as error:
            text = f"the Agent raised {describe_error(error)}"
            raise UnknownOutcome(text) if call.sent else Lacking(spec.name, text) from error

    async def _ask_or_send(
        self, agent: Agent, spec: Action, call: Call, request: AgentRequest, body: BaseModel | None
    ) -> Json:
        """Where an earlier call may have had its effect, ask first; then send, if there is need to.

        Nothing is sent that is too old for the service to know it by its key.
        """
        if request.undo and call.age_s > agent.undoes_within.total_seconds():
            raise _no_longer_undone(agent, request)
        if call.unknown and not request.undo:
            found = await agent.find(call, call.key) if agent.can_ask() else None
            if found is not None:
                call.unknown = False
                return result_of(found, spec, agent)
            if call.age_s > agent.remembers.total_seconds():
                raise _no_longer_known(agent, request)
            call.unknown = not agent.can_ask()  # never seen: whatever it answers to this key now is its first word
            if call.left < 1:
                raise TransientFault("the service has not seen the key; no call is left to send it")
        taken: list[BaseModel | None] = [] if body is None else [body]
        if spec.original is not None:
            taken.append(await _original(spec.original, call, request))
        return kept(await getattr(agent, spec.method)(call, *taken))

    async def _wait(self, seconds_: float) -> None:
        """Pause, but not beyond the moment at which the worker begins to drain."""
        try:
            async with asyncio.timeout(seconds_):
                await self._draining.begun.wait()
        except TimeoutError:
            return


async def _original(model: type[BaseModel], call: Call, request: AgentRequest) -> BaseModel | None:
    """What the step returned that is to be undone; where nobody was told, the service is asked by key."""
    if request.original is not None:
        return model.model_validate(request.original)
    for key in reversed(request.keys) if call.agent.can_ask() else ():
        if (found := await call.agent.find(call, key)) is not None and found.state == "done":
            try:
                return model.model_validate(found.body)
            except ValidationError as error:
                raise StillAtWork(f"the step is done, or will be; its answer: {first_problem(error)}") from error
    return None


def _pause_after(fault: TransientFault, call: Call, pause_s: float) -> float:
    """Seconds until the next call: longer where the service wishes it, and spread over the time that is left where it
    is still at work on an earlier call."""
    spread_s = call.time_left / (call.left + 1) if isinstance(fault, StillAtWork) else 0.0
    return max(pause_s * random.uniform(0.5, 1.0), seconds(fault.retry_after), spread_s)  # noqa: S311 (jitter)


def _no_longer_known(agent: Agent, request: AgentRequest) -> PermanentFault:
    message = f"an earlier call may have been done, and {agent.service} remembers keys for {agent.remembers}"
    word = f"resubmit {request.task_id} --no-effect {request.step} --evidence TEXT --reason TEXT"
    return PermanentFault(KEY_FORGOTTEN, f"{message}: look there, and if it had no effect, `python starter.py {word}`")


def _no_longer_undone(agent: Agent, request: AgentRequest) -> PermanentFault:
    message = f"{agent.service} undoes by key for {agent.undoes_within}, and the first call is older"
    word = f"repair {request.task_id} {request.step} --done-by-hand --evidence TEXT --reason TEXT"
    return PermanentFault(KEY_FORGOTTEN, f"{message}: undo it there, then `python starter.py {word}`")
