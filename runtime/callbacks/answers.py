"""Answers that come later: an HTTP endpoint that writes the inbox, then completes the waiting activity.

A crash after the inbox is written loses nothing: the next attempt looks there before it calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

import structlog
from fastapi import FastAPI, HTTPException, Path, Request, Response
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.client import AsyncActivityHandle, Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.agent import Action
from domain.definition import Registry
from domain.faults import Unreachable
from domain.ids import TASK_ID, idempotency_key
from domain.json_text import BadJson, dumped, is_json, read_json
from domain.messages import Completed, Failed, GaveUp, Json, Outcome, OutcomeBox
from domain.redaction import redact
from domain.states import StepState, TaskState
from runtime.callbacks.addresses import CallbackAddresses
from store.inbox import InboxStore
from store.snapshot import Snapshot
from store.state_store import StateStore

log = structlog.get_logger(__name__)

_MOST_BYTES = 256 * 1024
_BODY_WITHIN_S = 5.0
_MOST_CODE, _MOST_MESSAGE = 100, 500
"""What is kept of a service's words, as of those in an HTTP answer."""


class PostedAnswer(BaseModel):
    """What a service posts. `response_id` is the same in every delivery of the same answer to a key."""

    response_id: str = Field(min_length=1, max_length=200)
    status: Literal["done", "failed"]
    result: Json = {}
    code: str = "failed"
    message: str = ""

    @field_validator("code", "message")
    @classmethod
    def _cut(cls, text: str, info: ValidationInfo) -> str:
        return redact(text)[: _MOST_CODE if info.field_name == "code" else _MOST_MESSAGE]


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

        204: kept (or a duplicate); 400: JSON that reads in more ways than one; 403: bad signature; 404: no such step;
        408: too slow; 413: too large; 422: no answer; 503: the store or Temporal is away, post it again. Nothing of a
        body is read before its signature is checked.
        """
        app = FastAPI(title="callbacks", docs_url=None, redoc_url=None, openapi_url=None)

        @app.get("/health")
        async def health() -> dict[str, str]:
            return {"status": "ok", "role": "callbacks", "deployment": deployment}

        @app.post("/callbacks/{signature}/{key}", status_code=204)
        async def answer(signature: str, key: Annotated[str, Path(max_length=300)], request: Request) -> Response:
            if not self._addresses.is_signed(key, signature):
                raise HTTPException(403, "the signature is not that of the key")
            body = await _read(request)
            try:
                await self.take(key, body)
            except Unreachable as error:
                raise HTTPException(503, "come again: a part is out of reach", {"Retry-After": "5"}) from error
            log.info("answer taken", key=key, signed_by=signature.partition("-")[0])
            return Response(status_code=204)

        return app

    async def take(self, key: str, body: bytes) -> None:
        """Keep an answer, and complete the activity that waits, if one does, with the first that came for its key.

        Raises:
            HTTPException: It is none, or nobody can wait for it.
            Unreachable: The store, or Temporal while somebody may wait. Taking it again is safe, and finishes this.
        """
        task, step, action = await self._find(key)
        try:
            answer = _answer(body)
            outcome = self._outcome(action, answer)
        except HTTPException as error:  # the service has done something, and nobody knows what
            cause = f"an answer that came later can't be read: {error.detail}"
            await self._complete(task, step, key, GaveUp(cause=cause))
            raise
        new = await self._inbox.put(answer.response_id, key, outcome)
        counts = await self._inbox.find(key) or outcome
        log.info("answer kept", task_id=task.task_id, step=step, response_id=answer.response_id, duplicate=not new)
        if outcome != counts or (new and not _is_awaited(task, step, key)):
            await self._store.steps.note_late(
                task.task_id, step, outcome.model_dump(mode="json"), actor=f"callbacks/{key}"
            )
        await self._complete(task, step, key, counts)

    async def _find(self, key: str) -> tuple[Snapshot, str, str]:
        """The task, the step and the action of a key."""
        task_id, step, _ = [*key.split(":", 2), "", ""][:3]
        task = await self._store.tasks.find(task_id) if TASK_ID.fullmatch(task_id) else None
        definition = self._registry.find(task.definition, task.version) if task else None
        if task is None or definition is None or step not in [s.name for s in definition.steps]:
            raise HTTPException(404, f"no step waits for key {key!r}")
        return task, step, definition.step(step).action

    def _outcome(self, action: str, answer: PostedAnswer) -> Outcome:
        if answer.status == "failed":
            return Failed(code=answer.code, message=answer.message, unknown_before=False)
        model = self._actions[action].result
        try:
            result = dumped(model.model_validate(answer.result)) if model else {}
        except BadJson as error:
            raise HTTPException(422, f"the result can't be kept: {error}") from error
        except ValidationError as error:
            name = model.__name__ if model else ""
            raise HTTPException(422, f"the result is not a {name}: {_problems(error)}") from error
        return Completed(result=result, calls=None)

    async def _complete(self, task: Snapshot, step: str, key: str, outcome: Outcome) -> None:
        """Tell the run that waits, if one can.

        Raises:
            Unreachable: Temporal did not say that nobody waits.
        """
        if not task.locked_by or not task.run_id or key != _current_key(task, step):
            return
        handle = self._client.get_async_activity_handle(
            workflow_id=task.locked_by, run_id=task.run_id, activity_id=step
        )
        try:
            await _finish(handle, outcome)
        except RPCError as error:
            if not _is_gone(error):
                raise Unreachable(f"Temporal did not take the answer: {error.message}") from error
            log.info("nobody waits for the answer now", task_id=task.task_id, step=step, reason=error.message)


def _is_gone(error: RPCError) -> bool:
    """Whether Temporal says for certain that nobody waits; or that it never takes this answer, however often it comes.

    What any other status says can change: the server is away, busy, starting, without its namespace; our access is
    refused for now.
    """
    if error.status is RPCStatusCode.NOT_FOUND:
        return not any(d.Is(NamespaceNotFoundFailure.DESCRIPTOR) for d in error.grpc_status.details)
    return error.status is RPCStatusCode.INVALID_ARGUMENT


async def _read(request: Request) -> bytes:
    """A body that is bounded in size and time."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_WITHIN_S):
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BYTES:
                    raise HTTPException(413, f"an answer has at most {_MOST_BYTES} bytes")
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not come within {_BODY_WITHIN_S:g} s") from error
    return bytes(body)


def _answer(body: bytes) -> PostedAnswer:
    """The answer that a body says, without what PostgreSQL can't store."""
    try:
        return PostedAnswer.model_validate(read_json(body, cleans=True))
    except BadJson as error:
        raise HTTPException(400 if is_json(body) else 422, str(error)[:_MOST_MESSAGE]) from error
    except ValidationError as error:
        raise HTTPException(422, _problems(error)) from error


def _problems(error: ValidationError) -> str:
    """What is wrong where, without the values: a caller knows them, and others need not."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in found)[:_MOST_MESSAGE]


async def _finish(handle: AsyncActivityHandle, outcome: Outcome) -> None:
    if isinstance(outcome, Completed):
        await handle.complete(outcome.model_dump(mode="json"), rpc_timeout=timedelta(seconds=5))
        return
    text = getattr(outcome, "message", "") or getattr(outcome, "cause", "") or outcome.kind
    details = OutcomeBox(outcome=outcome).model_dump(mode="json")
    failure = ApplicationError(text, details, type=type(outcome).__name__, non_retryable=True)
    await handle.fail(failure, rpc_timeout=timedelta(seconds=5))


def _is_awaited(task: Snapshot, step: str, key: str) -> bool:
    """Whether an attempt waits for this answer, in time. If none does, the next one may still take it."""
    row = task.step(step)
    at_work = task.state is TaskState.PROCESSING and row.state is StepState.RUNNING
    in_time = row.time_left_s is not None and row.time_left_s > 0
    return at_work and in_time and key == _current_key(task, step)


def _current_key(task: Snapshot, step: str) -> str:
    return idempotency_key(task.task_id, step, task.step(step).key_generation)
