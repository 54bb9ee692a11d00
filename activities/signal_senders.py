"""Who sent a signal, as Temporal has it in the history of the run that got it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

from temporalio import activity
from temporalio.service import RPCError

from domain.text import clean
from domain.undo_requests import SignalRef

_RPC = timedelta(seconds=2)
_WITHIN_S = 5.0
"""A request for undo waits no longer for who sent it to be looked up in a long history."""


async def sender_of(heard: SignalRef) -> str:
    """Who sent a signal, by his own word to Temporal; empty if Temporal does not say now."""
    handle = activity.client().get_workflow_handle(heard.workflow_id, run_id=heard.run_id)
    number = 0
    with suppress(RPCError, TimeoutError):
        async with asyncio.timeout(_WITHIN_S):
            async for event in handle.fetch_history_events(rpc_timeout=_RPC):
                signal = event.workflow_execution_signaled_event_attributes
                number += signal.signal_name == "compensate"
                if number == heard.number:
                    return clean(signal.identity)[:200]
    return ""
