"""Ends the runs of attempts whose task was taken from them, and passes on what they were asked in vain.

Fencing does not depend on it. That a request for undo is answered does: what Temporal has accepted counts, also
where the run was closed before it could read it. So the store keeps every such attempt until that is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

import structlog
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from domain.ids import SENDER, TASK_QUEUE, undo_request_of
from store.supervision import StaleRun

_REASON = "its task has expired, and it has not ended"
_RPC = timedelta(seconds=2)
_WITHIN_S = 6.0
_AT_ONCE = 20
_BEGUN_WITHIN_S = 5.0
"""After that no further run is begun: what was done is on record in time, however slowly Temporal answers."""
_HANDED_ON = (
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED,
)
"""How a run hands its requests for undo to the `CompensationRequest` of its task."""

log = structlog.get_logger(__name__)


async def end_runs(client: Client, runs: Sequence[StaleRun]) -> dict[str, str]:
    """End these runs. Returns the attempts that nothing is left to do about; to look at the others again is harmless.

    Each comes with what its workflow code failed with, if it did: a definition that blocks is named nowhere else.

    An open run is cancelled, so that it ends by itself, with what it knows. One that is still open at the next look
    can't: it kills its workers, is paused, or has none. It is terminated then; at once, if its task was given up.
    """
    slots, began = asyncio.Semaphore(_AT_ONCE), monotonic()

    async def tried(run: StaleRun) -> str | None:
        async with slots:
            return await _tried(client, run) if monotonic() - began < _BEGUN_WITHIN_S else None

    done = await asyncio.gather(*map(tried, runs))
    return {run.attempt: fault for run, fault in zip(runs, done, strict=True) if fault is not None}


async def _tried(client: Client, stale: StaleRun) -> str | None:
    """What can't be done about one run is no reason to leave the others."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await _end(client, stale)
    except Exception as error:
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            return ""  # it was never started, or its history is gone
        log.warning("run not ended", run=stale.attempt, error=f"{type(error).__name__}: {error}")
        return None


async def _end(client: Client, stale: StaleRun) -> str | None:
    """Cancel a run, or terminate it if it won't end by that; if it is closed, pass on what it was asked in vain."""
    # Not by the handle, which does not know the status of a run that is paused.
    wanted = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=stale.attempt)
    )
    answer = await client.workflow_service.describe_workflow_execution(wanted, retry=True, timeout=_RPC)
    run = answer.workflow_execution_info
    handle = client.get_workflow_handle(stale.attempt, run_id=run.execution.run_id)
    if not run.HasField("close_time"):
        if not (stale.given_up or answer.workflow_extended_info.cancel_requested):
            await handle.cancel(rpc_timeout=_RPC)
            return None
        await handle.terminate(reason=_REASON, rpc_timeout=_RPC)
    return await _pass_on(client, handle)


async def _pass_on(client: Client, handle: WorkflowHandle[object, object]) -> str:
    """Pass the first request for undo on that a closed run was sent and has not handed on itself, if there is one.

    Returns what its workflow code last failed with.
    """
    waiting: list[HistoryEvent] = []
    fault = ""
    async for event in handle.fetch_history_events(rpc_timeout=_RPC):
        fault = _fault(event) or fault
        if event.workflow_execution_signaled_event_attributes.signal_name == "compensate":
            waiting.append(event)
        elif event.event_type in _HANDED_ON:
            waiting.clear()
    if not waiting:
        return fault
    signal = waiting[0].workflow_execution_signaled_event_attributes
    payloads = signal.input.payloads[:1]
    await client.start_workflow(
        "CompensationRequest",
        id=undo_request_of(handle.id),
        task_queue=TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal="compensate",
        start_signal_args=await client.data_converter.decode(payloads, [RawValue]) if payloads else [],
        memo={SENDER: signal.identity},
        static_summary=f"sent to {handle.id} by {signal.identity or 'unknown'}"[:200],
        rpc_timeout=_RPC,
    )
    return fault


def _fault(event: HistoryEvent) -> str:
    """What workflow code failed with, and where: its innermost frame."""
    failed = event.workflow_task_failed_event_attributes
    if failed.cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_WORKFLOW_WORKER_UNHANDLED_FAILURE:
        return ""
    frames = [line.strip() for line in failed.failure.stack_trace.splitlines() if line.strip().startswith("File ")]
    blocked = failed.failure.application_failure_info.type == "_DeadlockError"  # which lists its frames from within
    return f"{failed.failure.message} ({frames[0 if blocked else -1]})" if frames else failed.failure.message
