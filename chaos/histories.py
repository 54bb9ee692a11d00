"""Temporal's own record of a run with faults: every history replays on the code as it is, and says how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random

from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecution, WorkflowHistory
from temporalio.worker import Replayer

from runtime.plugin import new_plugin
from supervisor.sweep import Supervise
from workflows.compensation_request import CompensationRequest
from workflows.scheduler import Scheduler


@dataclass
class Histories:
    """What the histories of a run say.

    Attributes:
        runs: How many there are. replayed: How many of them were replayed.
        ends: How they ended: the status, and the type of the failure where there was one.
        diverged: Runs that do not replay on this code, and why.
    """

    runs: int = 0
    replayed: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    diverged: dict[str, str] = field(default_factory=dict)


async def replay(client: Client, random: Random, most: int) -> Histories:
    """Replay all histories but those of sweeps; so many of them, chosen at random, where there are more."""
    found = Histories()
    workflows = [Scheduler, CompensationRequest, Supervise]
    replayer = Replayer(workflows=workflows, plugins=[new_plugin()], debug_mode=True)  # a busy machine is no deadlock
    listed = [w async for w in client.list_workflows(page_size=1000) if w.workflow_type != "Supervise"]
    found.runs = len(listed)
    chosen = listed if len(listed) <= most else random.sample(listed, most)
    async with replayer.workflow_replay_iterator(_histories(client, chosen, found)) as results:
        async for result in results:
            found.replayed += 1
            if result.replay_failure is not None:
                found.diverged[result.history.workflow_id] = repr(result.replay_failure)[:500]
    return found


async def _histories(
    client: Client, chosen: list[WorkflowExecution], found: Histories
) -> AsyncIterator[WorkflowHistory]:
    for seen in chosen:
        history = await client.get_workflow_handle(seen.id, run_id=seen.run_id).fetch_history()
        found.ends[_end(seen, history.events[-1])] += 1
        yield history


def _end(seen: WorkflowExecution, last: HistoryEvent) -> str:
    """The failure's type, for a run that failed; else its status."""
    if last.HasField("workflow_execution_failed_event_attributes"):
        return last.workflow_execution_failed_event_attributes.failure.application_failure_info.type
    return seen.status.name.capitalize() if seen.status else "Unknown"
