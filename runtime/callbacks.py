"""Answers that come later: an HTTP endpoint that writes the inbox, then completes the waiting activity, best effort.

The address depends on the idempotency key only, and carries a signature of it; so any attempt can take the answer. A
crash after the inbox is written loses nothing: the next attempt looks there before it calls.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import quote

import structlog
from fastapi import FastAPI, HTTPException, Path, Request, Response
from pydantic import BaseModel, Field, ValidationError
from temporalio.client import AsyncActivityHandle, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.agent import Action
from domain.definition import Registry
from domain.faults import Unreachable
from domain.ids import idempotency_key
from domain.messages import Completed, Json, Outcome, OutcomeBox, Refused
from domain.states import StepState, TaskState
from domain.text import clean_json
from store.inbox import InboxStore
from store.snapshot import Snapshot
from store.state_store import StateStore

log = structlog.get_logger(__name__)

_MOST_BYTES = 256 * 1024
_BODY_WITHIN_S = 5.0


class Answer(BaseModel):
    """What a service posts. `response_id` is the same in every delivery of the same answer to a key."""

    response_id: str = Field(min_length=1, max_length=200)
    status: Literal["done", "failed"]
    result: Json = {}
    code: str = "failed"
    message: str = ""


class CallbackAddresses:
    """Addresses by idempotency key, signed with a secret."""

    def __init__(self, base_url: str, secret: str) -> None:
        self._base_url, self._secret = base_url.rstrip("/"), secret

    def address(self, key: str) -> str:
        """Where a service answers a key."""
        return f"{self._base_url}/callbacks/{self._sign(key)}/{quote(key, safe='')}"

    def is_signed(self, key: str, signature: str) -> bool:
        """Whether the signature is that of the key."""
        return hmac.compare_digest(self._sign(key).encode(), signature.encode())

    def _sign(self, key: str) -> str:
        return hmac.new(self._secret.encode(), key.encode(), hashlib.sha256).hexdigest()[:32]


class Callbacks:
    """Takes answers in."""

    def __init__(
        self,
        store: StateStore,
        inbox: InboxStore,
        client: Client,
        registry: Registry,
        actions: Mapping[str, Action],
        addresses: CallbackAddresses,
    ) -> None:
        self._store, self._inbox, self._client = store, inbox, client
        self._registry, self._actions, self._addresses = registry, actions, addresses

    def app(self, deployment: str) -> FastAPI:
        """The HTTP application. `deployment` is named by its health, so that nobody takes it for their own.

        204: kept (or a duplicate); 403: bad signature; 404: no such step; 408: too slow; 413: too large; 422: no
        answer; 503: the store is away, post it again. Nothing of a body is read before its signature is checked.
        """
        app = FastAPI(title="callbacks", docs_url=None, redoc_url=None, openapi_url=None)

        @app.get("/health")
        async def health() -> dict[str, str]:
            return {"status": "ok", "role": "callbacks", "deployment": deployment}

        @app.post("/callbacks/{signature}/{key}", status_code=204)
        async def answer(signature: str, key: Annotated[str, Path(max_length=300)], request: Request) -> Response:
            if not self._addresses.is_signed(key, signature):
                raise HTTPException(403, "the signature is not that of the key")
            try:
                await self.take(key, await _read(request))
            except Unreachable as error:
                raise HTTPException(503, "not kept: post it again", {"Retry-After": "5"}) from error
            return Response(status_code=204)

        return app

    async def take(self, key: str, answer: Answer) -> None:
        """Keep an answer, and complete the activity that waits, if one does, with the first that came for its key."""
        task_id, step, _ = key.split(":", 2)
        task = await self._store.snapshot(task_id)
        definition = self._registry.find(task.definition, task.version) if task else None
        if task is None or definition is None or step not in [s.name for s in definition.steps]:
            raise HTTPException(404, f"no step waits for key {key!r}")
        outcome = self._outcome(definition.step(step).action, answer)
        new = await self._inbox.put(answer.response_id, key, outcome)
        counts = await self._inbox.find(key) or outcome
        log.info("answer kept", task_id=task_id, step=step, response_id=answer.response_id, duplicate=not new)
        if task.locked_by and task.run_id and key == _current_key(task, step):
            await self._complete(task, step, counts)
        if outcome != counts or (new and not _is_awaited(task, step, key)):
            await self._store.note_late(task_id, step, outcome.model_dump(mode="json"), actor=f"callbacks/{key}")

    def _outcome(self, action: str, answer: Answer) -> Outcome:
        if answer.status == "failed":
            return Refused(code=answer.code, message=answer.message, unknown_before=False)
        model = self._actions[action].result
        try:
            result = model.model_validate(answer.result).model_dump(mode="json") if model else {}
        except ValidationError as error:
            raise HTTPException(422, f"the result is not a {model.__name__ if model else ''}: {error}") from error
        return Completed(result=result, calls=None)

    async def _complete(self, task: Snapshot, step: str, outcome: Outcome) -> None:
        handle = self._client.get_async_activity_handle(
            workflow_id=task.locked_by or "", run_id=task.run_id, activity_id=step
        )
        try:
            await _finish(handle, outcome)
        except RPCError as error:
            log.info("nobody waits for the answer now", task_id=task.task_id, step=step, reason=error.message)


async def _read(request: Request) -> Answer:
    """The answer in a body that is bounded in size and time, without what PostgreSQL can't store."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BYTES:
                    raise HTTPException(413, f"an answer has at most {_MOST_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not come within {_BODY_WITHIN_S:g} s") from error
    try:
        answer = Answer.model_validate_json(bytes(body))
        return Answer.model_validate(clean_json(answer.model_dump()))
    except ValidationError as error:
        raise HTTPException(422, str(error)) from error


async def _finish(handle: AsyncActivityHandle, outcome: Outcome) -> None:
    if isinstance(outcome, Completed):
        await handle.complete(outcome.model_dump(mode="json"), rpc_timeout=timedelta(seconds=5))
        return
    text = getattr(outcome, "message", "") or outcome.kind
    details = OutcomeBox(outcome=outcome).model_dump(mode="json")
    failure = ApplicationError(text, details, type=type(outcome).__name__, non_retryable=True)
    await handle.fail(failure, rpc_timeout=timedelta(seconds=5))


def _is_awaited(task: Snapshot, step: str, key: str) -> bool:
    """Whether an attempt waits for this answer, in time. If none does, the next one may still take it (C10)."""
    row = task.step(step)
    at_work = task.state is TaskState.PROCESSING and row.state is StepState.RUNNING
    in_time = row.time_left_s is not None and row.time_left_s > 0
    return at_work and in_time and key == _current_key(task, step)


def _current_key(task: Snapshot, step: str) -> str:
    return idempotency_key(task.task_id, step, task.step(step).key_generation)
