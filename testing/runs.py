"""What people do to runs in Temporal, and its client has no verb for."""

from __future__ import annotations

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

_FIRST_TASK_DONE = 4
"""The event with which the first workflow task of a run completes: where a reset goes back to."""


async def reset(client: Client, workflow_id: str, request_id: str) -> str:
    """Reset the last run of a workflow, at work or over; the id of the run that this makes."""
    answer = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            reason="a test asks for it",
            request_id=request_id,
            workflow_task_finish_event_id=_FIRST_TASK_DONE,
        )
    )
    return answer.run_id
