"""A process of the system with kill points in it (see `chaos/points.py`): a worker, or somebody who asks.

What it does is in its environment: `SUBMIT` holds a submission, `RESUBMIT` a task id, `REPAIR` a task id and a step,
`FORCE` a service; otherwise it is a worker with the roles in `ROLES`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from activities.agents import all_agents
from chaos.planted.bugs import plant
from chaos.points import install
from chaos.rehearsal.stand_ins import play_agents
from domain.states import UndoState
from runtime.logging import set_up_logging
from runtime.roles import Role, run_roles
from runtime.settings import Settings
from runtime.wiring import Stores, open_stores
from store.orders import Amendment
from store.submission import SubmissionOutcome


def main() -> None:
    """Do what the environment says; ends as `worker.py` does, as the SDK can abort while the interpreter ends."""
    plant()
    install()
    play_agents()
    set_up_logging("INFO")
    asyncio.run(_work(Settings()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def _work(settings: Settings) -> None:
    asked = next((name for name in _ASKED if name in os.environ), None)
    if asked is None:
        roles = {Role(r) for r in os.environ.get("ROLES", ",".join(Role)).split(",")}
        await run_roles(settings, roles, {a.service for a in all_agents()})
        return
    async with open_stores(settings, size=2) as stores:
        print(await _ASKED[asked](stores, os.environ[asked]))


async def _submit(stores: Stores, message: str) -> SubmissionOutcome:
    return await stores.desk.submit(stores.desk.parse(message))


async def _resubmit(stores: Stores, task_id: str) -> object:
    """With a correction that changes nothing, as the record of the test is right."""
    found = (await stores.orders.load([task_id]))[task_id]
    amendment = Amendment(task_id, found.record or {}, found.amendments)
    return await stores.store.requests.resubmit(
        task_id,
        requester="tests",
        reason="what was wrong is mended",
        changes={},
        amend=lambda: stores.orders.amend(amendment),
    )


async def _repair(stores: Stores, what: str) -> object:
    task_id, step = what.split()
    target = UndoState.CLOSED_BY_HAND
    return await stores.store.requests.repair_undo(
        task_id, step, target, requester="tests", reason="done", evidence="seen"
    )


async def _force(stores: Stores, service: str) -> None:
    await stores.breakers.force(service, "open", requester="tests", reason="to see")
    await stores.breakers.force(service, None, requester="tests", reason="seen")


_ASKED: dict[str, Callable[[Stores, str], Awaitable[object]]] = {
    "SUBMIT": _submit,
    "RESUBMIT": _resubmit,
    "REPAIR": _repair,
    "FORCE": _force,
}


if __name__ == "__main__":
    main()
