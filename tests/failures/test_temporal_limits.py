"""Temporal's limits, far lowered: attempts stay far below them, and who exceeds one hurts nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from chaos.testbed import LOWERED_LIMITS, MOST_SIGNALS
from definitions import registry
from devstack.servers.temporal import EmbeddedTemporal
from domain.search_attributes import SEARCH_ATTRIBUTES
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from testing.bench import Bench
from testing.databases import Databases
from testing.simulators import Simulators
from tests.failures.test_temporal_ui import in_the_middle, violations


@pytest.fixture(scope="module")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTemporal]:
    """A server with limits far lower than usual."""
    folder = tmp_path_factory.mktemp("temporal")
    server = EmbeddedTemporal(folder, ui_port=0, search_attributes=SEARCH_ATTRIBUTES, dynamic_config=LOWERED_LIMITS)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


def largest(order: dict[str, Any]) -> dict[str, Any]:
    """The order with the most and the longest lines that there may be."""
    lines = [{"sku": f"{n:064d}", "quantity": 1, "unit_price_minor": 10**9} for n in range(200)]
    customer = {"name": "n" * 200, "email": f"{'e' * 240}@example.com"}
    return {**order, "lines": lines, "customer": customer, "card_token": "t" * 200}


@pytest.mark.failure(81)
@pytest.mark.parametrize("name", ["order", "provisioning"])
async def test_history_of_an_attempt_is_bounded_by_its_steps(
    bench: Bench, order: dict[str, Any], machine: dict[str, Any], task_id: str, name: str
) -> None:
    """Six events an activity, one a local one, and workflow tasks between: ten a step at most, forward and undo."""
    definition = registry().newest(name)
    assert definition is not None
    async with bench.worker():
        await bench.submit(largest(order) if name == "order" else machine, task_id, name)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="test"))
        if name == "order":
            await bench.reached(task_id, TaskState.COMPENSATED)
    for attempt in await bench.attempts(task_id):
        run = await bench.client.get_workflow_handle(attempt).describe()
        assert run.history_length <= 10 * len(definition.steps)
        assert run.raw_description.workflow_execution_info.history_size_bytes < 64 * 1024


async def ask_often(bench: Bench, run: str, times: int) -> Counter[str]:
    """Ask a run for undo so many times; what came of the signals."""

    async def ask(number: int) -> str:
        try:
            await bench.client.get_workflow_handle(run).signal("compensate", f"request {number}")
        except RPCError as error:
            return error.message
        return "taken"

    return Counter(await asyncio.gather(*(ask(n) for n in range(times))))


@pytest.mark.failure(82)
@pytest.mark.demand("F1")
async def test_two_hundred_undo_requests_undo_a_running_order_once(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        run = await in_the_middle(bench, simulators, order, task_id, "ship")
        answers = await ask_often(bench, run, 200)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        with pytest.raises(WorkflowFailureError):
            await bench.client.get_workflow_handle(run).result()
    assert answers["taken"] > 0
    assert [e.kind for e in (await bench.page(task_id)).events].count("undo_requested") == 1
    assert simulators.live(task_id) == {}
    assert await violations(databases, simulators) == []


@pytest.mark.failure(82)
@pytest.mark.demand("F1", "F11")
async def test_undo_that_is_asked_for_two_hundred_times_meanwhile_finishes(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """What is beyond Temporal's own bound is refused to the sender; the task goes on."""
    async with bench.worker():
        run = bench.client.get_workflow_handle(await in_the_middle(bench, simulators, order, task_id, "refund"))
        answers = await ask_often(bench, run.id, 200)
        assert await bench.settled_with_sweeps(task_id) is TaskState.COMPENSATED
    assert sum(answers.values()) == 200
    assert answers["taken"] <= MOST_SIGNALS
    assert [e.kind for e in (await bench.page(task_id)).events].count("undo_requested") == 1
    assert (await run.describe()).history_length < 1000
    assert await violations(databases, simulators) == []
