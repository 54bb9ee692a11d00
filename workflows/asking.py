"""Asking for undo: reading the request out of whatever a signal carries, and passing it on so that it is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError, is_cancelled_exception

from domain.ids import undo_request_id
from domain.messages import Json, UndoRequest
from domain.text import clean
from workflows.terms import LOCAL

NO_REASON = "no reason given"
_TRIES = 3


async def ask_for_undo(request: UndoRequest) -> str:
    """Ask, from an attempt. The verdict, see `UndoVerdict`; `handed_on` if there is none yet.

    If the store does not answer, a `CompensationRequest` goes on asking: an attempt may not live long enough.
    """
    try:
        verdict: Json = await workflow.execute_local_activity("request_undo", request, result_type=dict, **LOCAL)
    except FailureError as error:  # of a local activity its own error, not an ActivityError around it
        await _hand_on(request)
        if is_cancelled_exception(error):
            raise asyncio.CancelledError from error
        return "handed_on"
    if verdict["verdict"] == "past_pivot":
        workflow.logger.warning(verdict["message"])
    return str(verdict["verdict"])


async def _hand_on(request: UndoRequest) -> None:
    """Let a `CompensationRequest` go on asking. One that asks already may do so for an attempt only: it is told."""
    workflow_id = undo_request_id(workflow.info().workflow_type, request.task_id)
    for _ in range(_TRIES):
        try:
            await workflow.start_child_workflow(
                "CompensationRequest",
                request,
                id=workflow_id,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("%s asks already", workflow_id)
        else:
            return
        if request.holder is not None:
            return
        with suppress(FailureError):  # it has ended meanwhile: start it anew
            told = {"requester": request.requester, "reason": request.reason}
            await workflow.get_external_workflow_handle(workflow_id).signal("compensate", told)
            return


def read_request(args: Sequence[RawValue]) -> UndoRequest:
    """The request that a `compensate` signal stands for, of no task yet: a text is the reason; an object may name both.

    Nothing that is sent can fail the run: what can't be read is quoted as the reason.
    """
    value = _decode(args[0]) if args else None
    fields = value if isinstance(value, dict) else {"reason": value}
    reason, requester = fields.get("reason"), fields.get("requester")
    return UndoRequest(
        task_id="",
        requester=(_short(requester) if isinstance(requester, str) else "") or "signal",
        reason=_reason(reason, value),
    )


def _decode(raw: RawValue) -> Any:
    try:
        return workflow.payload_converter().from_payload(raw.payload)
    except Exception as error:
        return f"(unreadable input: {type(error).__name__})"


def _reason(reason: Any, value: Any) -> str:
    if isinstance(reason, str):
        return _short(reason) or NO_REASON
    return NO_REASON if value in (None, {}, "") else _short(f"(unreadable input: {value!r})")


def _short(text: str) -> str:
    return clean(text).strip()[:500]
