"""What the pattern calls the starter: claims the tasks it is given, and starts their runs, as a worker would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from cli.output import print_note
from domain.faults import Unreachable
from runtime.dispatcher import Dispatcher
from runtime.settings import Settings
from runtime.starts import Started
from runtime.temporal import connect
from runtime.wiring import Stores, process_name
from store.reads import Reads
from store.rows import Task

_POLL_S = 0.2


@dataclass(frozen=True)
class Launched:
    """What came of it. `left`: tasks that could not be started, and stay submitted; `runs`: run ids by attempt."""

    left: list[str]
    runs: Mapping[str, str | None] = field(default_factory=dict)
    cause: str = ""


async def launch(settings: Settings, stores: Stores, reads: Reads, task_ids: Sequence[str]) -> Launched:
    """Claim and start these tasks, as many at once as one worker would hold; live workers may take some first."""
    try:
        client = await connect()
        dispatcher = Dispatcher(
            client,
            stores.store,
            stores.orders,
            stores.breakers,
            stores.registry,
            worker=process_name("cli"),
            slots=settings.task_slots,
            eager=False,
        )
        launched = await _start_all(dispatcher, stores, reads, task_ids, settings.claim_within.total_seconds())
    except Unreachable as error:
        launched = Launched(await _not_started(reads, task_ids), cause=str(error))
    if left := launched.left:
        print_note(f"error: {launched.cause}")
        print_note(f"submitted, not started: workers will claim {', '.join(left[:5])}{' and others' * (len(left) > 5)}")
    return launched


async def _start_all(
    dispatcher: Dispatcher, stores: Stores, reads: Reads, task_ids: Sequence[str], patience_s: float
) -> Launched:
    """Rounds until every task has been taken up; gives up when nothing moves for a while."""
    left, started = list(task_ids), dict[str, Started]()
    give_up_at = monotonic() + patience_s
    while True:
        started |= {s.task_id: s for s in await dispatcher.start_only(left)}
        tasks = await reads.tasks(left)
        still = [t.task_id for t in tasks if t.task_id not in started and _is_free(t)]
        if len(still) < len(left):
            give_up_at = monotonic() + patience_s
        if not still or monotonic() > give_up_at:
            runs = {s.workflow_id: s.run_id for s in started.values()}
            return Launched(still, runs, f"Temporal started nothing, or no slot came free, for {patience_s:g} s")
        left = still
        await asyncio.sleep(_POLL_S)


async def _not_started(reads: Reads, task_ids: Sequence[str]) -> list[str]:
    return [t.task_id for t in await reads.tasks(task_ids) if _is_free(t)]


def _is_free(task: Task) -> bool:
    return task.locked_by is None and not task.state.is_settled
