"""What Temporal's own record says of attempts: their runs, what each was given, and which a reset made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime

from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client

from audit.evidence import Run, Runs
from domain.attempts import RunInput
from store.submission import digest_of

_AT_ONCE = 20
_RESET = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW


async def read_runs(client: Client, asked_at: datetime) -> Runs:
    """Every attempt's runs that Temporal has on record; those that a reset made are marked.

    `asked_at`: by the state store's clock, just now.
    """
    several = asyncio.Semaphore(_AT_ONCE)
    found = await asyncio.gather(*[_with_digest(client, r, several) async for r in _listed(client) if r.is_attempt])
    times = Counter(r.workflow_id for r in found)
    return Runs.of([await _marked(client, r) if times[r.workflow_id] > 1 else r for r in found], asked_at)


async def _listed(client: Client) -> AsyncIterator[Run]:
    """By the service's own call, again while the server is too busy: the client's list fails at a paused run."""
    wanted = ListWorkflowExecutionsRequest(namespace=client.namespace, page_size=1000)
    while True:
        page = await client.workflow_service.list_workflow_executions(wanted, retry=True)
        for seen in page.executions:
            status = WorkflowExecutionStatus.Name(seen.status).removeprefix("WORKFLOW_EXECUTION_STATUS_")
            yield Run(workflow_id=seen.execution.workflow_id, run_id=seen.execution.run_id, status=status)
        wanted.next_page_token = page.next_page_token
        if not page.next_page_token:
            return


async def _with_digest(client: Client, found: Run, several: asyncio.Semaphore) -> Run:
    """With the digest of the business record that it was given: its first event has it."""
    execution = WorkflowExecution(workflow_id=found.workflow_id, run_id=found.run_id)
    wanted = GetWorkflowExecutionHistoryRequest(namespace=client.namespace, execution=execution, maximum_page_size=1)
    async with several:
        page = await client.workflow_service.get_workflow_execution_history(wanted, retry=True)
    given = page.history.events[0].workflow_execution_started_event_attributes.input.payloads
    try:
        run = RunInput.model_validate_json(given[0].data)
    except (IndexError, ValidationError):
        return found
    return found if run.undo else found.model_copy(update={"digest": digest_of(run.definition, run.record)})


async def _marked(client: Client, found: Run) -> Run:
    history = await client.get_workflow_handle(found.workflow_id, run_id=found.run_id).fetch_history()
    is_reset = any(e.workflow_task_failed_event_attributes.cause == _RESET for e in history.events)
    return found.model_copy(update={"is_reset": is_reset})
