"""Workers at databases with defaults of their own, and at one that takes no writes for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import structlog

from devstack.servers.postgres import EmbeddedPostgres
from domain.faults import Unreachable
from domain.states import TaskState
from runtime.roles import Role
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.servers import ended, submitted
from tests.integration.test_sessions import DEFAULTS, read_only, set_for


@pytest.fixture
def databases(request: pytest.FixtureRequest, templates: EmbeddedPostgres) -> Iterator[Databases]:
    """Fresh databases; spoilt by defaults of their own where a test asks for it."""
    with Databases(templates) as found:
        if getattr(request, "param", None) == "spoilt":
            with psycopg.connect(templates.dsn(), autocommit=True) as server:
                for dsn in (found.owner, found.orders_owner):
                    set_for(server, f"DATABASE {dsn.rpartition('/')[2]}", DEFAULTS)
        yield found


@pytest.mark.failure(52)
@pytest.mark.demand("A2", "H5")
@pytest.mark.parametrize("databases", ["spoilt"], indirect=True)
async def test_no_default_of_a_database_disturbs_a_worker(
    bench: Bench, simulators: Simulators, order: dict[str, Any], machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker(*Role):
        ids = await submitted(bench, order, task_id, 3)
        await bench.submit(machine, f"{task_id}-machine", "provisioning")
        assert await ended(bench, [*ids, f"{task_id}-machine"]) == {TaskState.PROCESSED}
    assert [simulators.live(i) for i in ids] == [FULL] * 3


@pytest.mark.failure(56)
@pytest.mark.demand("A2", "B9", "C2")
async def test_worker_waits_out_a_store_that_takes_no_writes(
    bench: Bench,
    simulators: Simulators,
    templates: EmbeddedPostgres,
    order: dict[str, Any],
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when its disk is full: no process ends, refused submissions say why, and orders end once it writes again."""
    monkeypatch.setattr("store.database._PATIENCE_S", 0.5)
    simulators.fault("shipping", "latency", latency_ms=300, match={"task_id": f"{task_id}*"})

    async def refuses() -> bool:
        try:
            await bench.submit(order, f"{task_id}-refused")
        except Unreachable as error:
            return "is read-only" in str(error)
        return False

    async with bench.worker(*Role):
        ids = await submitted(bench, order, task_id, 3)
        await simulators.called("shipping", ids[0])
        with read_only(templates):
            await eventually(refuses)
            await asyncio.gather(*(refuses() for _ in range(5)))  # long enough for each duty of the worker to fail
        for task in ids:
            await bench.settled_with_sweeps(task)
        assert await ended(bench, ids) == {TaskState.PROCESSED}
    assert [simulators.live(i) for i in ids] == [FULL] * 3


@pytest.mark.failure(54)
@pytest.mark.demand("H5")
async def test_worker_outlives_the_loss_of_a_right_and_goes_on_later(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    """What waiting does not mend is a mistake of ours or an operator's; the worker says so and stays."""
    await bench.submit(order, task_id)
    with psycopg.connect(databases.owner, autocommit=True) as owner:
        owner.execute("REVOKE UPDATE ON task FROM scheduler_app")
        with structlog.testing.capture_logs() as logs:

            async def said() -> bool:
                return any(line["event"] == "round failed" for line in logs)

            async with bench.worker(*Role):
                await eventually(said)
                owner.execute("GRANT UPDATE ON task TO scheduler_app")
                assert await bench.settled(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL
