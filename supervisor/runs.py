"""Ends the runs of attempts whose task was taken from them. Best effort: fencing does not depend on it (B9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from datetime import timedelta

import structlog
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from domain.ids import attempt_before, undo_request_of

_REASON = "its task has expired, and it has not ended"
_RPC = timedelta(seconds=2)
_WITHIN_S = 6.0

log = structlog.get_logger(__name__)


async def end_runs(client: Client, evicted: Sequence[tuple[str, str]], given_up: Collection[str]) -> None:
    """End the stale runs of these tasks, as far as that can be done in six seconds.

    A run is cancelled, so that it can pass on what it was asked. One that kills its workers can't end by that, and
    Temporal would hand it to one worker after another: it is terminated with the next eviction, or when its task is
    given up, and the undo that it was asked for and has not read yet is passed on for it (F1).

    Args:
        evicted: Each task's id, and the attempt that has lost it.
        given_up: Those of them that no further attempt will be made of.
    """
    calls = {}
    for task_id, attempt in evicted:
        handle = client.get_workflow_handle(attempt)
        calls[attempt] = _terminate(client, attempt) if task_id in given_up else handle.cancel(rpc_timeout=_RPC)
        if (before := attempt_before(attempt)) is not None:
            calls[before] = _terminate(client, before)
    await asyncio.gather(*(_tried(attempt, call) for attempt, call in calls.items()))


async def _tried(attempt: str, call: Awaitable[None]) -> None:
    """What can't be done to one run is no reason to leave the others."""
    try:
        await asyncio.wait_for(call, _WITHIN_S)
    except Exception as error:
        if not (isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND):
            log.warning("run not ended", run=attempt, error=f"{type(error).__name__}: {error}")


async def _terminate(client: Client, attempt: str) -> None:
    """Terminate a run unless it is over, and hand the request for undo that it has not read to one that will.

    A signal that comes during a workflow task is in no history until that ends, at the latest with the run: so it looks
    before, as nothing would be lost if this process died, and after.
    """
    # Not by the handle, which does not know the status of a run that is paused.
    wanted = DescribeWorkflowExecutionRequest(
        namespace=client.namespace, execution=WorkflowExecution(workflow_id=attempt)
    )
    answer = await client.workflow_service.describe_workflow_execution(wanted, retry=True, timeout=_RPC)
    run = answer.workflow_execution_info
    if run.HasField("close_time"):
        return
    handle = client.get_workflow_handle(attempt, run_id=run.execution.run_id)
    passed_on = await _pass_on(client, handle, run.task_queue)
    await handle.terminate(reason=_REASON, rpc_timeout=_RPC)
    if not passed_on:
        await _pass_on(client, handle, run.task_queue)


async def _pass_on(client: Client, handle: WorkflowHandle[object, object], task_queue: str) -> bool:
    """Pass the first request for undo on that a run has not read. Whether there is one."""
    unread: list[Sequence[Payload]] = []
    async for event in handle.fetch_history_events(rpc_timeout=_RPC):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            unread.clear()  # and what the run was told then is its own affair
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name == "compensate":
            unread.append(signal.input.payloads[:1])
    if unread:
        await client.start_workflow(
            "CompensationRequest",
            id=undo_request_of(handle.id),
            task_queue=task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="compensate",
            start_signal_args=await client.data_converter.decode(unread[0], [RawValue]) if unread[0] else [],
            rpc_timeout=_RPC,
        )
    return bool(unread)
