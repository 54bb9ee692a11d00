"""Functions with a mistake in them, each made out of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from activities.call import Call, Reply
from activities.clock import uptime
from definitions import registry
from domain.attempts import StepWork, WriteResult
from domain.definition import Definition
from domain.faults import Fault
from domain.messages import AgentRequest, Completed, GaveUp, Grant, Json, Outcome
from runtime.starts import Started
from store.admission import Admission, AdmissionCaps, CapReached, NewTask
from store.claims import Hold
from store.orders import Amendment
from store.submission import SUBMISSION, Accepted, Submission, digest_of

_AN_HOUR_S = 3600.0
_BOUNDLESS = AdmissionCaps(in_flight=1 << 30, pending=1 << 30, pending_age=timedelta(days=365))
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


def swallowing_requests(_: Any) -> Any:
    async def hand_on(self: Any) -> None:
        self.first = None

    return hand_on


def undoing_only_what_is_there(real: Any) -> Any:
    async def undo(self: Call, path: str, body: Any = None) -> None:
        if await self.ask(f"/operations/{quote(self.keys[-1], safe='')}", "unknown_key") is not None:
            await real(self, path, body)

    return undo


def retrying_below_the_budget(real: Any) -> Any:
    async def _exchange(self: Call, *request: Any) -> tuple[httpx.Response, Fault | None]:
        response, fault = await real(self, *request)
        for _ in range(_MORE_TRIES):
            if response.is_server_error:
                self.left, self.sent = self.left + 1, self.sent - 1
                response, fault = await real(self, *request)
        return response, fault

    return _exchange


def taking_silence_for_success(real: Any) -> Any:
    async def perform(self: Any, request: AgentRequest, deadline: float, tell: Any = lambda _: None) -> Outcome:
        outcome: Outcome = await real(self, request, deadline, tell)
        return Completed(result={}, calls=None) if isinstance(outcome, GaveUp) and not request.undo else outcome

    return perform


def swallowing_refused_undo(real: Any) -> Any:
    async def _fail(self: Any, hold: Any, written: Any, outcome: Any) -> Any:
        if written.undo:
            return await self.advance(hold, written, written.then, Completed(result={}, calls=None))
        return await real(self, hold, written, outcome)

    return _fail


def beginning_side_by_side(real: Any) -> Any:
    def _ready(self: Any, running: dict[str, Any]) -> list[Any]:
        early = [s for s in self._definition.steps if s.name == "charge"]
        early = [s for s in early if s.name not in self._results and s.name not in running]
        return list(dict.fromkeys([*real(self, running), *early]))

    return _ready


def counting_from_the_command(_: Any) -> Any:
    def _left_s(info: Any, request: AgentRequest) -> float:
        left: timedelta = info.schedule_to_close_timeout - (info.started_time - info.scheduled_time)
        return left.total_seconds()

    return _left_s


def naming_activities_anew(real: Any) -> Any:
    def queued_options(step: Any, work: Any, grant: Any) -> Any:
        return {**real(step, work, grant), "activity_id": f"{step.name}-{work.epoch}"}

    return queued_options


def logging_undo_after_the_effect(real: Any) -> Any:
    intents: dict[tuple[str, str], Any] = {}

    async def advance(
        self: Any,
        hold: Any,
        *,
        done: str | None = None,
        result: Json | None = None,
        calls: int | None = None,
        begin: Any = None,
    ) -> Any:
        if begin and begin.undo:
            intents[hold.task_id, begin.step] = begin.undo
        report = await real(self, hold, done=done, result=result, calls=calls, begin=begin)
        if done and (undo := intents.pop((hold.task_id, done), None)):
            await self._steps._tasks.database.rows(_LOG, {"task_id": hold.task_id, "step": done, "action": undo.action})
        return report

    return advance


_LOG = """
INSERT INTO compensation (task_id, seq, step, action, request)
SELECT %(task_id)s, coalesce(max(seq), 0) + 1, %(step)s, %(action)s, '{}' FROM compensation WHERE task_id = %(task_id)s
RETURNING seq
"""


def creating_behind_the_acknowledgement(real: Any) -> Any:
    async def create(self: Any, task_id: str, definition: str, record: Json, digest: str) -> bool:
        _behind(partial(real, self, task_id, definition, record, digest))
        return True

    return create


def confirming_behind_the_acknowledgement(real: Any) -> Any:
    async def confirm(self: Any, task_id: str, digest: str, *, actor: str) -> bool:
        if actor != SUBMISSION:
            return bool(await real(self, task_id, digest, actor=actor))
        _behind(partial(real, self, task_id, digest, actor=actor))
        return True

    return confirm


def _behind(write: Callable[[], Awaitable[Any]]) -> None:
    """Let it be written in a second, by a process that may not live so long."""

    async def later() -> None:
        await asyncio.sleep(1)
        await write()

    _written.add(asyncio.create_task(later()))


_written: set[asyncio.Task[Any]] = set()
"""Nobody else keeps them."""


def taking_the_same_content_for_the_same_task(real: Any) -> Any:
    async def submit(self: Any, submission: Submission) -> Any:
        definition, record = _read(submission)
        query = "SELECT task_id FROM business_record WHERE digest = %(digest)s"
        found = await self._orders.database.rows(query, {"digest": digest_of(definition.name, record)})
        if any(r["task_id"] != submission.task_id for r in found):
            return Accepted(submission.task_id, definition.name, new=False)
        return await real(self, submission)

    return submit


def _read(submission: Submission) -> tuple[Definition, Json]:
    definition = registry().newest(submission.definition)
    assert definition is not None
    return definition, definition.record.model_validate(submission.record).model_dump(mode="json")


def letting_the_last_writer_win(real: Any) -> Any:
    async def _dead_letter(self: Any, submission: Submission, reason: str) -> Any:
        definition, record = _read(submission)
        found = (await self._orders.load([submission.task_id]))[submission.task_id]
        await self._orders.amend(Amendment(submission.task_id, record, found.amendments))
        await self._orders.database.rows(
            "UPDATE business_record SET digest = %(digest)s WHERE task_id = %(task_id)s RETURNING task_id",
            {"task_id": submission.task_id, "digest": digest_of(definition.name, record)},
        )
        return Accepted(submission.task_id, definition.name, new=False)

    return _dead_letter


def counting_before_the_insert(real: Any) -> Any:
    async def admit(self: Any, new: NewTask) -> Any:
        load = (await self._database.rows(_LOAD, {"definition": new.definition.name}))[0]
        if load["in_flight"] >= self._caps.in_flight or load["pending"] >= self._caps.pending:
            return CapReached(new.task_id, "a cap is reached", timedelta(seconds=2))
        await asyncio.sleep(0.3)  # the insert is sent over a line that is not always quick
        return await real(Admission(self._database, _BOUNDLESS), new)

    return admit


_LOAD = """
SELECT count(*) AS in_flight, count(*) FILTER (WHERE state = 'Pending') AS pending
FROM task WHERE definition = %(definition)s AND state IN ('Pending', 'Processing')
"""


def pausing_before_it_writes(real: Any) -> Any:
    async def recover(
        self: Any,
        decisions: Any,
        actor: str,
        *,
        sweep: int | None = None,
        per_s: float = 20.0,
        ramp: timedelta = timedelta(seconds=10),
    ) -> Any:
        await asyncio.sleep(2)
        return await real(self, decisions, actor, sweep=sweep, per_s=per_s, ramp=ramp)

    return recover


def recovering_twice(real: Any) -> Any:
    async def recover(
        self: Any,
        decisions: Any,
        actor: str,
        *,
        sweep: int | None = None,
        per_s: float = 20.0,
        ramp: timedelta = timedelta(seconds=10),
    ) -> Any:
        evicted = await real(self, decisions, actor, sweep=sweep, per_s=per_s, ramp=ramp)
        await real(self, decisions, actor, sweep=sweep, per_s=per_s, ramp=ramp)
        return evicted

    return recover


def adopting_any_run(_: Any) -> Any:
    async def _started_before(self: Any, claim: Any) -> Started:
        return Started(claim.task.task_id, claim.locked_by, None)

    return _started_before


def calling_beside_its_twin(real: Any) -> Any:
    async def _joined(self: Any, name: str, given: StepWork, do: Any, begun: Any) -> WriteResult:
        alone = name if name == "begin" else f"{name} {uuid4()}"
        return await real(self, alone, given, do, begun)  # type: ignore[no-any-return]

    return _joined


def knowing_the_attempt_only(_: Any) -> Any:
    def holds(self: Any, task: Any) -> bool:
        return bool(self.locked_by == task.locked_by)

    return holds


def dropping_it(_: Any) -> Any:
    async def note_late(self: Any, task_id: str, step: str, answer: Json, *, actor: str) -> None:
        return None

    return note_late
