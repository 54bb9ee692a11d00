"""A request for undo that can be made in every state of a task, also when no attempt is running.

Temporal takes no signal for a closed run; signal-with-start of this workflow is always taken:

    temporal workflow signal-with-start --type CompensationRequest --task-queue scheduler \\
        --workflow-id order/1234/undo --signal-name compensate --signal-input '{"reason": "customer called"}'
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from domain.ids import parse_undo_request_id
    from domain.messages import Json
    from domain.undo_requests import UndoReason
    from workflows.options import UNTIL_DONE
    from workflows.undo_requests import NO_REASON, Requests

_PATIENCE = timedelta(seconds=10)


@workflow.defn(name="CompensationRequest")
class CompensationRequest:
    """Runs the one statement that asks for undo, and ends with its verdict."""

    def __init__(self) -> None:
        self._requests = Requests()

    @workflow.run
    async def run(self, given: Any = None) -> Json:
        """Ask once: for the request that an attempt handed on, for the first signal, or without a reason.

        Returns:
            The verdict, also where it is no: see `UndoVerdict`.

        Raises:
            ApplicationError: The workflow id is not `{definition}/{task_id}/undo`.
        """
        workflow_id = workflow.info().workflow_id
        parsed = parse_undo_request_id(workflow_id)
        if parsed is None:
            message = f"workflow id {workflow_id!r} is not of the form DEFINITION/TASK_ID/undo"
            raise ApplicationError(message, type="BadWorkflowId", non_retryable=True)
        verdict = await self._ask(await self._request(given), *parsed)
        if verdict["verdict"] == "not_holder" and self._requests.first is not None:  # for an attempt that lost its task
            verdict = await self._ask(self._requests.first, *parsed)
        workflow.set_current_details(f"{verdict['verdict']}: {verdict['message']}")
        return verdict

    async def _ask(self, request: UndoReason, definition: str, task_id: str) -> Json:
        asked = request.of(definition, task_id)
        verdict: Json = await workflow.execute_local_activity("request_undo", asked, result_type=dict, **UNTIL_DONE)
        return verdict

    async def _request(self, given: Any) -> UndoReason:
        if workflow.info().parent is not None:
            return UndoReason.model_validate(given)
        with suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._requests.first is not None, timeout=_PATIENCE)
        return self._requests.first or UndoReason(requester="temporal", reason=NO_REASON)

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Take the first request; all others ask for the same."""
        self._requests.take(name, args)
