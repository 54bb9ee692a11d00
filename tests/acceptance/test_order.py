"""An order, end to end on real parts."""

from __future__ import annotations

from typing import Any

import pytest

from domain.states import StepState, TaskState
from testing.bench import Bench
from testing.records import FULL
from testing.simulators import Simulators


@pytest.mark.demand("A1", "B4", "B6", "B8", "B11", "C1")
async def test_order_that_meets_no_fault_is_processed(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    page = await bench.page(task_id)
    assert [s.state for s in page.steps] == [StepState.COMPLETED] * 4
    assert simulators.live(task_id) == FULL
    assert [e.number for e in page.events] == list(range(1, len(page.events) + 1))


@pytest.mark.demand("C5", "F1", "F3", "F5")
async def test_declined_card_undoes_what_was_done(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    order["card_token"] = "tok_declined"
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {}


async def test_provisioning_waits_for_the_answer_that_comes_later(
    bench: Bench, simulators: Simulators, machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == {"cloud": 4}
