"""A request for undo that can be made in every state of a task, also when no attempt is running (F1).

Temporal takes no signal for a closed run; signal-with-start of this workflow is always taken:

    temporal workflow signal-with-start --type CompensationRequest --task-queue scheduler \\
        --workflow-id order/1234/undo --signal-name compensate --signal-input '{"reason": "customer called"}'
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from domain.ids import parse_undo_request_id
    from domain.messages import Json, UndoRequest
    from workflows.requests import NO_REASON, read_request
    from workflows.terms import LOCAL

_PATIENCE = timedelta(seconds=10)


@workflow.defn(name="CompensationRequest")
class CompensationRequest:
    """Runs the one statement that asks for undo, and ends with its verdict."""

    def __init__(self) -> None:
        self._asked: list[UndoRequest] = []

    @workflow.run
    async def run(self, _input: Any = None) -> Json:
        """Ask once, for the first signal; started without one, it asks without a reason.

        Raises:
            ApplicationError: The workflow id is not `{definition}/{task_id}/undo`, or there is no such task.
        """
        workflow_id = workflow.info().workflow_id
        parsed = parse_undo_request_id(workflow_id)
        if parsed is None:
            message = f"workflow id {workflow_id!r} is not of the form DEFINITION/TASK_ID/undo"
            raise ApplicationError(message, type="BadWorkflowId", non_retryable=True)
        try:
            await workflow.wait_condition(lambda: bool(self._asked), timeout=_PATIENCE)
        except TimeoutError:
            self._asked.append(UndoRequest(task_id="", requester="temporal", reason=NO_REASON))
        request = self._asked[0].model_copy(update={"task_id": parsed[1]})
        verdict: Json = await workflow.execute_local_activity("request_undo", request, result_type=dict, **LOCAL)
        workflow.set_current_details(f"{verdict['verdict']}: {verdict['message']}")
        await workflow.wait_condition(workflow.all_handlers_finished)
        return verdict

    @workflow.signal(dynamic=True)
    def on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        """Take the request; whatever it carries, it can't fail the run."""
        if name == "compensate":
            self._asked.append(read_request("", args))
