"""Mistakes in the calls that Agents make."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx

from activities import queued
from activities.bookkeeping import Bookkeeping
from activities.call import Call, HowSent, Reply
from activities.call_loop import Agents
from activities.clock import uptime
from chaos.planted.bug import Bug
from chaos.planted.patches import Behaviour, Statement
from domain.attempts import StepWork, WriteResult
from domain.faults import Fault
from domain.messages import AgentRequest, Completed, GaveUp, Grant, Json, Outcome
from store.claims import Hold

_AN_HOUR_S = 3600.0
_MORE_TRIES = 2


def with_token_of_first_attempt(real: Any) -> Any:
    def _call(self: Any, spec: Any, request: AgentRequest, deadline: float) -> Call:
        return real(self, spec, request.model_copy(update={"epoch": 1}), deadline)  # type: ignore[no-any-return]

    return _call


def with_key_of_attempt(real: Any) -> Any:
    def _call(self: Any, spec: Any, request: AgentRequest, deadline: float) -> Call:
        call: Call = real(self, spec, request, deadline)
        return call if request.undo else replace(call, key=f"{request.task_id}:{request.step}:{request.epoch}")

    return _call


def with_deadline_on_wall_clock(real: Any) -> Any:
    def _call(self: Any, spec: Any, request: AgentRequest, deadline: float) -> Call:
        return real(self, spec, request, deadline + _AN_HOUR_S)  # type: ignore[no-any-return]

    return _call


def asking_without_a_reservation(real: Any) -> Any:
    async def ask(self: Call, path: str, unknown: str, **how: Any) -> Reply | None:
        self.left, self.sent = self.left + 1, self.sent - 1
        return await real(self, path, unknown, **how)  # type: ignore[no-any-return]

    return ask


def calling_before_it_is_begun(real: Any) -> Any:
    async def _call(self: Any, hold: Hold, work: StepWork) -> WriteResult:
        if not work.undo and self._reservations.peek(hold.run_id, work.step, False) is None:
            grant = Grant(calls=1, within_s=work.begin.within_s)
            await self._agents.carry_out(work.request.granted(grant, hold.run_id), uptime() + work.begin.within_s)
        return await real(self, hold, work)  # type: ignore[no-any-return]

    return _call


def undoing_only_what_is_there(real: Any) -> Any:
    async def undo(self: Call, path: str, body: Any = None) -> None:
        if await self.ask(f"/operations/{quote(self.keys[-1], safe='')}", "unknown_key") is not None:
            await real(self, path, body)

    return undo


def retrying_below_the_budget(real: Any) -> Any:
    async def _exchange(
        self: Call, method: str, path: str, json: Json | None, how: HowSent
    ) -> tuple[httpx.Response, Fault | None]:
        response, fault = await real(self, method, path, json, how)
        for _ in range(_MORE_TRIES):
            if response.is_server_error:
                self.left, self.sent = self.left + 1, self.sent - 1
                response, fault = await real(self, method, path, json, how)
        return response, fault

    return _exchange


def taking_silence_for_success(real: Any) -> Any:
    async def perform(self: Any, request: AgentRequest, deadline: float, tell: Any = lambda _: None) -> Outcome:
        outcome: Outcome = await real(self, request, deadline, tell)
        return Completed(result={}, calls=None) if isinstance(outcome, GaveUp) and not request.undo else outcome

    return perform


def counting_from_the_command(_: Any) -> Any:
    def _left_s(info: Any, request: AgentRequest) -> float:
        left: timedelta = info.schedule_to_close_timeout - (info.started_time - info.scheduled_time)
        return left.total_seconds()

    return _left_s


CALLS_BUGS = (
    Bug(
        "no_fence",
        "every call carries the same fencing token, so that no service can tell a zombie's call",
        (Behaviour(Agents, "_call", with_token_of_first_attempt),),
        ("order: after:claim",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "no_barrier",
        "undo asks what is there and takes that back; what comes later finds no tombstone",
        (Behaviour(Call, "undo", undoing_only_what_is_there),),
        ("order undone in mid-charge",),
        ("compensated_has_no_effect",),
    ),
    Bug(
        "key_per_attempt",
        "the idempotency key is made anew by each attempt",
        (Behaviour(Agents, "_call", with_key_of_attempt),),
        ("order: after:call:charge",),
        ("effect_is_there_at_most_once",),
    ),
    Bug(
        "retry_in_two_layers",
        "the HTTP client retries by itself, below the loop that counts the budget",
        (Behaviour(Call, "_exchange", retrying_below_the_budget),),
        ("service out of calls: before:give_up:stock",),
        ("calls_stay_within_what_was_granted",),
    ),
    Bug(
        "question_not_counted",
        "asking what became of a key takes nothing out of the budget",
        (Behaviour(Call, "ask", asking_without_a_reservation),),
        ("order whose reply is lost",),
        ("calls_stay_within_what_was_granted",),
    ),
    Bug(
        "called_before_it_is_begun",
        "an inline step is called first, and its beginning written behind that",
        (Behaviour(Bookkeeping, "_call", calling_before_it_is_begun),),
        ("order whose reply is lost",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "silence_taken_for_success",
        "a call that got no good answer is taken for done",
        (Behaviour(Agents, "carry_out", taking_silence_for_success),),
        ("service out of calls: before:give_up:stock",),
        ("processed_has_every_effect",),
    ),
    Bug(
        "wall_clock_in_worker",
        "the deadline is an instant on the worker's own clock, which is an hour behind",
        (Behaviour(Agents, "_call", with_deadline_on_wall_clock),),
        ("order: after:claim",),
        ("no_call_has_more_time_than_its_step",),
    ),
    Bug(
        "time_from_the_command",
        "a queued Agent's time counts from when the command reached Temporal, not from the grant",
        (Behaviour(queued, "_left_s", counting_from_the_command),),
        ("order whose line to Temporal stalls",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "release_keeps_the_calls",
        "a step that nobody took is released without what it had reserved",
        (Statement("release", "greatest(0, s.reserved - %(sent)s::int)", "0"),),
        ("order whose queue nobody serves",),
        ("release_before_any_call_costs_nothing",),
    ),
)
