"""Requests for undo: read out of whatever a signal carries, and handed to the workflow that asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import FailureError, WorkflowAlreadyStartedError

from domain.ids import SENDER, TASK_QUEUE, actor, undo_request_of
from domain.messages import Json
from domain.text import clean
from domain.undo_requests import SignalRef, UndoReason

NO_REASON = "no reason given"


class Requests:
    """What a run was asked for and has not passed on yet: one request, as all others ask for the same."""

    def __init__(self) -> None:
        self.first: UndoReason | None = None
        self._number = 0

    def take(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a signal; whatever it carries, it can't fail the run."""
        if name == "compensate":
            self._number += 1
            self.first = self.first or read_request(args, self._number)
        else:
            workflow.logger.warning("signal %s is not known: only `compensate` is", name)

    async def hand_on(self) -> asyncio.Task[Json] | None:
        """Let a `CompensationRequest` ask: it outlives the attempt. Returns its verdict to come, if it is our own."""
        asks = None
        if self.first is not None:
            asks = await hand_on(self.first)
            self.first = None
        return asks


async def hand_on(request: UndoReason) -> asyncio.Task[Json] | None:
    """Start the workflow that asks; one that asks already may do so for an attempt only: it is told."""
    workflow_id = undo_request_of(workflow.info().workflow_id)
    words = {"requester": request.requester.partition(":")[2], "reason": request.reason}
    while True:
        try:
            return await workflow.start_child_workflow(
                "CompensationRequest",
                request,
                id=workflow_id,
                task_queue=TASK_QUEUE,
                result_type=dict,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("%s asks already", workflow_id)
        if request.holder is not None:
            return None
        with suppress(FailureError):  # it has ended meanwhile: start it anew
            await workflow.get_external_workflow_handle(workflow_id).signal("compensate", words)
            return None


def read_request(args: Sequence[RawValue], number: int) -> UndoReason:
    """The request that a `compensate` signal stands for: a text is the reason; an object may name both.

    Nothing that is sent can fail the run: what can't be read is quoted as the reason. Whoever sends it says who he is:
    so the requester is the channel with that name, and nobody else; beside it goes who sent it, as Temporal knows it.
    """
    value = _decode(args[0]) if args else None
    fields = value if isinstance(value, dict) else {"reason": value}
    reason, requester = fields.get("reason"), fields.get("requester")
    name = _short(requester) if isinstance(requester, str) else ""
    sender = workflow.memo_value(SENDER, "")  # where the Supervisor has passed the signal on
    info = workflow.info()
    heard = None if sender else SignalRef(workflow_id=info.workflow_id, run_id=info.run_id, number=number)
    by = actor("signal", name or sender)
    return UndoReason(requester=by, reason=_reason(reason, value), sender=sender, heard=heard)


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
