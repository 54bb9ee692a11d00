"""The protocol that all services share: headers in, faults on the way, the ledger's answer out.

Order of a call: outage, key and token, twin in progress, time left, faults before the effect, the ledger,
faults after it. A call is recorded before anything is decided about it.
"""

import asyncio
import json
import os
import re
from collections.abc import Callable
from typing import assert_never

from pydantic import BaseModel, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from devstack.simulators.connection import CutConnection
from devstack.simulators.faults import FaultKind, FaultRule, Injector, Plan, Target
from devstack.simulators.ledger import Ledger
from devstack.simulators.messages import Answer, Call, Create, Json, Operation, Undo, refusal

_KEY = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")
_CRASHED = 137


class UndoRequest(BaseModel):
    """What every undo carries: the keys of the calls to take back. Business fields beside it are ignored."""

    keys: list[str] = Field(min_length=1)


class FrontDesk:
    """Takes the calls of one service.

    Args:
        ledger: Where effects and calls are kept.
        injector: The service's faults.
        on_executed: Told path and key after each new effect is committed.
    """

    def __init__(
        self, ledger: Ledger, injector: Injector, on_executed: Callable[[str, str], None] | None = None
    ) -> None:
        """Opens the desk; nothing is in progress."""
        self._ledger = ledger
        self._injector = injector
        self._on_executed = on_executed
        self._in_progress: set[str] = set()

    async def effect(self, operation: Operation, request: Request) -> Response:
        """Handles a create or an undo."""
        key = request.headers.get("Idempotency-Key", "")
        call = _call_of(request, operation.path, key, undo=isinstance(operation, Undo))
        target = Target(call.path, call.undo, call.task_id)
        if self._injector.is_out(target):
            self._ledger.settle(self._ledger.record_call(call, [FaultKind.OUTAGE]), "fault:outage")
            return CutConnection()
        if (answer := self._unfit(call)) is not None:
            return self._turn_away(call, answer)
        self._in_progress.add(key)
        try:
            return await self._handle(operation, call, request, self._injector.plan(target))
        finally:
            self._in_progress.discard(key)

    async def probe(self, key: str, request: Request) -> Response:
        """Answers what became of a key. Probes are on record as such, and are not among the calls."""
        call = _call_of(request, request.url.path, key, undo=False)
        target = Target(request.url.path, undo=False, task_id=call.task_id, probe=True)
        if call.key is not None:
            self._ledger.record_probe(call)
        if self._injector.is_out(target):
            return CutConnection()
        plan = self._injector.plan(target)
        await asyncio.sleep(plan.delay_s)
        if plan.decisive is not None:
            return _lose(plan.decisive) or _respond(_injected(plan.decisive))
        row = self._ledger.find(key)
        if row is None:
            return _respond(refusal(404, "unknown_key", f"key {key} was never seen"))
        body = json.loads(row["answer"]) if row["answer"] else None
        return JSONResponse({"state": row["state"], "status": row["status"], "body": body})

    def _unfit(self, call: Call) -> Answer | None:
        """Returns the refusal of a call that can't be handled at all, or not now."""
        if call.key is None:
            return refusal(400, "invalid_header", "Idempotency-Key must be {task_id}:{step}:{generation}")
        if call.token is None:
            return refusal(400, "invalid_header", "X-Fencing-Token must be an integer")
        if call.key in self._in_progress:
            return refusal(409, "in_progress", f"a request with key {call.key} is in progress")
        if call.time_left_ms is not None and call.time_left_ms <= 0:
            return refusal(408, "deadline", f"the time of {call.key} is over: {call.time_left_ms} ms left")
        return None

    def _turn_away(self, call: Call, answer: Answer) -> Response:
        self._ledger.settle(self._ledger.record_call(call), answer.outcome, answer.status)
        return _respond(answer)

    async def _handle(self, operation: Operation, call: Call, request: Request, plan: Plan) -> Response:
        body = await request.body()  # before the delay: a caller that gave up must not stop the effect
        call_id = self._ledger.record_call(call, plan.kinds)
        await asyncio.sleep(plan.delay_s)
        fault = plan.decisive
        if fault is not None and fault.kind is FaultKind.ERROR and not fault.after_effect:
            answer = _injected(fault)
            self._ledger.settle(call_id, answer.outcome, answer.status)
            return _respond(answer)
        refused = fault if fault is not None and fault.kind is FaultKind.REFUSE else None
        answer = self._apply(operation, call_id, call, body, refused, plan)
        response = self._reply(answer, fault)
        if plan.duplicate is not None:
            delay_s = plan.duplicate.latency_ms / 1000
            response.background = BackgroundTask(self._deliver_again, operation, call, body, delay_s)
        return response

    def _reply(self, answer: Answer, fault: FaultRule | None) -> Response:
        """Answers a call whose effect is committed, unless a fault is in the way."""
        if fault is None or fault.kind is FaultKind.REFUSE:
            return _respond(answer)
        if fault.kind is FaultKind.CRASH:
            os._exit(_CRASHED)
        return _lose(fault) or _respond(_injected(fault))

    async def _deliver_again(self, operation: Operation, call: Call, body: bytes, delay_s: float) -> None:
        """Handles the same request once more, as a network that duplicates would make it."""
        await asyncio.sleep(delay_s)
        self._apply(operation, self._ledger.record_call(call, duplicate=True), call, body, None, Plan())

    def _apply(
        self,
        operation: Operation,
        call_id: int,
        call: Call,
        body: bytes,
        refused: FaultRule | None,
        plan: Plan,
    ) -> Answer:
        try:
            match operation:
                case Create():
                    return self._create(operation, call_id, call, body, refused, plan)
                case Undo():
                    return self._undo(operation, call_id, call, body, refused, plan)
                case _:
                    assert_never(operation)
        except ValidationError as error:
            detail = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            answer = refusal(400, "invalid_request", detail)
        self._ledger.settle(call_id, answer.outcome, answer.status)
        return answer

    def _create(
        self,
        operation: Create[BaseModel],
        call_id: int,
        call: Call,
        body: bytes,
        refused: FaultRule | None,
        plan: Plan,
    ) -> Answer:
        parsed = operation.body.model_validate_json(body)
        request: Json = json.loads(body)
        key = call.key or ""

        def execute() -> Answer:
            return operation.execute(parsed, key) if refused is None else _refused(refused)

        answer = self._ledger.create(call_id, call, request, execute, fenced=plan.fenced)
        if answer.outcome == "executed" and self._on_executed is not None:
            self._on_executed(call.path, key)
        return answer

    def _undo(
        self, operation: Undo, call_id: int, call: Call, body: bytes, refused: FaultRule | None, plan: Plan
    ) -> Answer:
        keys = UndoRequest.model_validate_json(body).keys
        strangers = [k for k in keys if not _KEY.fullmatch(k) or k.partition(":")[0] != call.task_id]
        if strangers:
            answer = refusal(400, "invalid_request", f"not keys of task {call.task_id}: {strangers}")
            self._ledger.settle(call_id, answer.outcome, answer.status)
            return answer
        refusing = _refused(refused) if refused is not None else None
        return self._ledger.undo(
            call_id, call, keys, operation.creates, refused=refusing, fenced=plan.fenced, tombstones=plan.tombstones
        )


def _call_of(request: Request, path: str, key: str, *, undo: bool) -> Call:
    return Call(
        path=path,
        undo=undo,
        key=key if _KEY.fullmatch(key) and len(key) <= 255 else None,
        token=_integer(request.headers.get("X-Fencing-Token")),
        time_left_ms=_integer(request.headers.get("X-Time-Left-Ms")),
    )


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None


def _lose(fault: FaultRule) -> Response | None:
    return CutConnection() if fault.kind is FaultKind.LOST_REPLY else None


def _injected(fault: FaultRule) -> Answer:
    headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
    body = {"error": {"code": "injected", "message": f"injected status {fault.answer_status}"}}
    return Answer(fault.answer_status, body, "fault:error", headers)


def _refused(fault: FaultRule) -> Answer:
    return refusal(fault.answer_status, "refused", "refused by an injected fault")


def _respond(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.status, answer.headers)
