"""Services that never succeed, while processes of each role that takes part die at random: calls within budgets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from chaos.evidence import audit_all
from chaos.testbed import ChaosTestbed
from runtime.roles import Role
from testing.records import ORDER

ROLES = (Role.SCHEDULER, Role.SCHEDULER, Role.AGENTS, Role.AGENTS, Role.SUPERVISOR)
"""Of each worker."""

ALWAYS = [("stock", False), ("payments", False), ("mail", False), ("payments", True)]
"""Which service fails, whatever is asked of it, and whether it is the undo; both what is inline and what is queued."""

EACH, SEED = 3, 5


@pytest.mark.failure(70)
@pytest.mark.timeout(400)
@pytest.mark.demand("D6", "E1", "E3", "E4", "H9")
async def test_failing_service_gets_no_more_calls_than_its_budget_whoever_dies(tmp_path: Path) -> None:
    draw, killed = random.Random(SEED), Counter[Role]()  # noqa: S311 (repeatable, no secret)
    ids = {
        f"{service}-{'undo' if undo else 'do'}-{n}": (service, undo) for service, undo in ALWAYS for n in range(EACH)
    }
    async with ChaosTestbed(tmp_path, workers=len(ROLES), seed=SEED, breaker_failures=10_000) as testbed:
        await asyncio.gather(*(testbed.worker(n).start(ROLES=role) for n, role in enumerate(ROLES)))
        for task_id, (service, undo) in ids.items():
            testbed.simulators.fault(service, "error", match={"task_id": task_id, "undo": undo})
            if undo:
                testbed.simulators.fault("mail", "error", match={"task_id": task_id})  # so that it is undone
            assert (await testbed.submit(ORDER, task_id)).verdict == "accepted"
        settling = asyncio.create_task(testbed.settle(within_s=300))
        while not settling.done():
            n = draw.randrange(len(ROLES))
            await testbed.worker(n).kill()
            killed[ROLES[n]] += 1
            await testbed.worker(n).start(ready=False, ROLES=ROLES[n])
            await asyncio.wait([settling], timeout=draw.uniform(0.3, 2.5))
        await settling
        received, ends = {}, Counter[str]()
        for task_id, (service, undo) in ids.items():
            page = await testbed.reads.page(task_id)
            ends[page.task.state] += 1
            step = next(s for s in page.steps if s.service == service)
            received[task_id] = testbed.simulators.calls(service, task_id, undo=undo)
            assert 1 <= received[task_id] <= (step.undo_budget if undo else step.budget), task_id
        found, _ = await audit_all(testbed, testbed.answers)
    print(f"seed {SEED}: killed {dict(killed)}; ended {dict(ends)}; received {received}")
    assert found.violations == []
    assert {role for role in killed if killed[role] >= EACH} == set(ROLES)
    assert ends["Processed"] == 0
