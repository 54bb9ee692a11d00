"""Ends the runs of attempts whose task was taken from them. Best effort: fencing does not depend on it (B9)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from domain.ids import attempt_before, undo_request_of

_REASON = "its task has expired, and it has not ended"
_RPC = timedelta(seconds=2)


async def end_runs(client: Client, evicted: Sequence[tuple[str, str]], given_up: Collection[str]) -> None:
    """End the stale runs of these tasks.

    A run is cancelled, so that it can pass on what it was asked. One that kills its workers can't end by that, and
    Temporal would hand it to one worker after another: it is terminated with the next eviction, or when its task is
    given up, and what it was asked is passed on for it (F1).

    Args:
        evicted: Each task's id, and the attempt that has lost it.
        given_up: Those of them that no further attempt will be made of.
    """
    calls = []
    for task_id, attempt in evicted:
        handle = client.get_workflow_handle(attempt)
        calls.append(_terminate(client, handle) if task_id in given_up else handle.cancel(rpc_timeout=_RPC))
        if (before := attempt_before(attempt)) is not None:
            calls.append(_terminate(client, client.get_workflow_handle(before)))
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, RPCError):
            raise result


async def _terminate(client: Client, handle: WorkflowHandle[object, object]) -> None:
    """Terminate a run, and hand the request for undo that it was sent to one that will read it.

    In this order, as a signal that comes during a workflow task is in no history until that ends.
    """
    run = await handle.describe(rpc_timeout=_RPC)
    if run.status is not WorkflowExecutionStatus.RUNNING:
        return
    await handle.terminate(reason=_REASON, rpc_timeout=_RPC)
    if asked := await _asked(client, client.get_workflow_handle(run.id, run_id=run.run_id)):
        await client.start_workflow(
            "CompensationRequest",
            id=undo_request_of(run.id),
            task_queue=run.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal="compensate",
            start_signal_args=asked,
            rpc_timeout=_RPC,
        )


async def _asked(client: Client, handle: WorkflowHandle[object, object]) -> list[RawValue]:
    """What the first `compensate` that a run was sent carries; nothing if none came."""
    async for event in handle.fetch_history_events(rpc_timeout=_RPC):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signal = event.workflow_execution_signaled_event_attributes
            if signal.signal_name == "compensate":
                return await client.data_converter.decode(signal.input.payloads, [RawValue])
    return []
