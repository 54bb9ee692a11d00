"""Every step of every shipped definition, by its Agent and a real service: run twice, out of time, with its headers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activities.agent import AnswersLater
from activities.agents import all_agents
from activities.call_loop import Agents
from activities.clock import uptime
from definitions import registry
from domain.definition import Definition, Step
from domain.ids import idempotency_keys
from domain.messages import AgentRequest, Completed, Json, Outcome, StoodDown
from testing.records import MACHINE, ORDER
from testing.simulators import Simulators
from testing.waiting import eventually

RECORDS = {"order": ORDER, "provisioning": MACHINE}
STEPS = [(d, s) for d in registry() for s in d.steps if d.name in RECORDS]
IDS = [f"{d.name}-{s.name}" for d, s in STEPS]


class _Caller:
    """Asks Agents as an attempt does, step by step, for one task."""

    def __init__(self, simulators: Simulators, definition: Definition, task_id: str) -> None:
        self._services = simulators.services
        self._definition, self._task_id = definition, task_id
        self._record: Any = definition.record.model_validate(RECORDS[definition.name])
        self.results: dict[str, Json] = {}

    async def ask(self, step: Step, *, undo: bool = False, within_s: float = 5.0, epoch: int = 3) -> Outcome | None:
        """What came of one request; None: the service will answer later."""
        if undo:
            assert step.undo is not None
            action, made = step.undo.action, step.undo.request(self._record) if step.undo.request else None
        else:
            action, made = step.action, step.request(self._record, self.results)
        request = AgentRequest(
            task_id=self._task_id,
            step=step.name,
            action=action,
            body=made.model_dump(mode="json") if made else {},
            keys=idempotency_keys(self._task_id, step.name, 0),
            epoch=epoch,
            calls=2,
            run_id="run",
            undo=undo,
        )
        async with Agents(list(all_agents()), self._services, callback_url=lambda key: "") as agents:
            try:
                return await agents.carry_out(request, uptime() + within_s)
            except AnswersLater:
                return None

    async def up_to(self, step: Step) -> None:
        """Do what must be done before this step."""
        for earlier in self._definition.steps[: self._definition.steps.index(step)]:
            outcome = await self.ask(earlier)
            if isinstance(outcome, Completed):
                self.results[earlier.name] = outcome.result


def effects(simulators: Simulators, step: Step, task_id: str) -> list[dict[str, Any]]:
    """Effects of one step that stand."""
    ledger = simulators.ledger(step.action.split(".", maxsplit=1)[0], task_id)
    return [e for e in ledger["effects"] if e["step"] == step.name and e["undone_at"] is None]


@pytest.mark.demand("C13", "C2")
@pytest.mark.parametrize(("definition", "step"), STEPS, ids=IDS)
async def test_each_step_run_twice_has_one_effect_and_answer(
    simulators: Simulators, definition: Definition, step: Step, task_id: str
) -> None:
    caller = _Caller(simulators, definition, task_id)
    await caller.up_to(step)
    first, second = await caller.ask(step), await caller.ask(step, epoch=4)
    if first is not None:  # a service that answers later may have answered by the second time
        assert first == second
    assert len(effects(simulators, step, task_id)) == 1


@pytest.mark.demand("C13", "F5")
@pytest.mark.parametrize(
    ("definition", "step"),
    [p for p in STEPS if p[1].undo],
    ids=[i for i, p in zip(IDS, STEPS, strict=True) if p[1].undo],
)
async def test_undo_run_twice_leaves_nothing_and_keeps_the_original_out(
    simulators: Simulators, definition: Definition, step: Step, task_id: str
) -> None:
    caller = _Caller(simulators, definition, task_id)
    await caller.up_to(step)
    await caller.ask(step)
    for _ in range(2):
        assert isinstance(await caller.ask(step, undo=True), Completed)
    late = await caller.ask(step)
    assert late is not None
    assert late.kind == "failed"
    assert effects(simulators, step, task_id) == []


@pytest.mark.demand("B7", "C3")
@pytest.mark.parametrize(("definition", "step"), STEPS, ids=IDS)
async def test_each_call_carries_its_key_its_token_and_the_time_left(
    simulators: Simulators, definition: Definition, step: Step, task_id: str
) -> None:
    caller = _Caller(simulators, definition, task_id)
    await caller.up_to(step)
    await caller.ask(step, within_s=4.0, epoch=7)
    service = step.action.split(".", maxsplit=1)[0]
    call = simulators.ledger(service, task_id)["calls"][-1]
    assert (call["key"], call["token"]) == (f"{task_id}:{step.name}:0", 7)
    assert 2_000 < call["time_left_ms"] < 4_000


@pytest.mark.failure(17)
@pytest.mark.demand("C3")
@pytest.mark.parametrize("within_s", [-1.0, 0.0, 0.06])
@pytest.mark.parametrize(("definition", "step"), STEPS, ids=IDS)
async def test_no_call_is_sent_once_the_time_is_up(
    simulators: Simulators, definition: Definition, step: Step, task_id: str, within_s: float
) -> None:
    caller = _Caller(simulators, definition, task_id)
    await caller.up_to(step)
    service = step.action.split(".", maxsplit=1)[0]
    before = simulators.calls(service, task_id)
    outcome = await caller.ask(step, within_s=within_s)
    assert isinstance(outcome, StoodDown)
    assert outcome.sent == 0
    assert simulators.calls(service, task_id) == before


@pytest.mark.failure(79)
@pytest.mark.demand("C5", "C2")
async def test_twin_at_work_is_waited_for_within_the_allowance(simulators: Simulators, task_id: str) -> None:
    """A worker has died during its call; the service goes on with it for longer than pauses of a second would wait."""
    definition, step = next((d, s) for d, s in STEPS if s.name == "charge")
    caller = _Caller(simulators, definition, task_id)
    await caller.up_to(step)
    simulators.fault("payments", "latency", latency_ms=2_500, times=1, match={"task_id": task_id})

    async def called() -> bool:
        return simulators.calls("payments", task_id) > 0

    dying = asyncio.create_task(caller.ask(step))
    await eventually(called)
    dying.cancel()
    assert isinstance(await caller.ask(step, within_s=8.0, epoch=4), Completed)
    assert len(effects(simulators, step, task_id)) == 1
