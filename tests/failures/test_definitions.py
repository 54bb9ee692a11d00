"""Definitions that fail while they are interpreted: a permanent fault of the task, at once, with step and words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from definitions import registry
from domain.definition import Definition, Registry
from domain.states import StepState, TaskState, UndoState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from testing.simulators import Simulators
from tests.failures.definitions.brittle import BRITTLE


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The definitions that are made to hurt are registered here."""
    monkeypatch.setenv("SAS_DEFINITIONS", "tests.failures.definitions")
    registry.cache_clear()
    yield
    monkeypatch.undo()
    registry.cache_clear()


def loaded(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """What the workers have loaded under the name and version of `brittle` is another definition than was released."""
    definition: Definition = replace(BRITTLE, **changed)
    monkeypatch.setattr("workflows.scheduler.registry", lambda: Registry([definition]))


@pytest.mark.failure(90)
@pytest.mark.demand("C5", "D7")
@pytest.mark.parametrize(
    ("fails", "how", "words"),
    [
        ("second", "raises", "ZeroDivisionError: nothing to divide by"),
        ("second", "gives a text", "AttributeError: 'str' object has no attribute 'model_dump'"),
        ("second", "gives another request", "ValidationError"),
        ("undo", "raises", "ZeroDivisionError: nothing to divide by"),
        ("tell", "raises", "ZeroDivisionError: nothing to divide by"),
        ("tell", "gives NaN", "ValueError: Out of range float values"),
        ("tell", "gives NUL", "ValueError: the request holds a NUL"),
        ("tell", "gives too much", "ValueError: the request has 300"),
    ],
)
async def test_definition_that_raises_at_a_step_is_a_permanent_fault(
    bench: Bench, simulators: Simulators, task_id: str, fails: str, how: str, words: str
) -> None:
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        await bench.submit({"fails": fails, "how": how}, task_id, "brittle")
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    page = await bench.page(task_id)
    (failed,) = [e for e in page.events if e.kind == "failed"]
    assert (failed.detail["step"], failed.detail["code"]) == (fails.replace("undo", "second"), "definition_error")
    assert failed.detail["message"].startswith(f"brittle v1 fails: {words}")
    assert (page.task.epoch, simulators.live(task_id)) == (2, {}), "one attempt, and its undo"


@pytest.mark.failure(90)
@pytest.mark.demand("C5", "D7", "G1")
async def test_definition_that_raises_before_any_step_leaves_the_task_in_error(
    bench: Bench, simulators: Simulators, task_id: str
) -> None:
    async with bench.worker(Role.SCHEDULER):
        await bench.submit({"fails": "first"}, task_id, "brittle")
        assert await bench.reached(task_id, TaskState.ERROR) is TaskState.ERROR
        page = await bench.page(task_id)
        assert page.steps[0].state is StepState.NOT_STARTED
        assert (page.task.error or {})["step"] == "first"
        assert [a.kind for a in page.alerts] == ["task_in_error"]
        await bench.stores.store.requests.resubmit(task_id, requester="cli:ada", reason="mended", changes={})
        assert await bench.reached(task_id, TaskState.ERROR) is TaskState.ERROR
    assert simulators.ledger("stock", task_id)["calls"] == []


@pytest.mark.failure(90)
@pytest.mark.demand("C5", "F12")
@pytest.mark.parametrize("changed", ["a step less", "a step more", "another record"])
async def test_changed_definition_of_a_released_version_is_a_permanent_fault(
    bench: Bench, task_id: str, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    class Other(BRITTLE.record):  # type: ignore[name-defined, misc]  # a class that is a value
        added: int

    more = replace(BRITTLE.steps[-1], name="more")
    change: dict[str, Any] = {
        "a step less": {"steps": BRITTLE.steps[:-1]},
        "a step more": {"steps": (*BRITTLE.steps, more)},
        "another record": {"record": Other},
    }[changed]
    loaded(monkeypatch, **change)
    async with bench.worker(Role.SCHEDULER):
        await bench.submit({"fails": "nothing"}, task_id, "brittle")
        assert await bench.reached(task_id, TaskState.ERROR) is TaskState.ERROR
    assert "brittle v1 fails" in ((await bench.page(task_id)).task.error or {})["message"]


@pytest.mark.failure(90)
@pytest.mark.demand("F9", "F12")
async def test_undo_of_a_removed_step_is_left_to_people(
    bench: Bench, simulators: Simulators, task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.worker(Role.SCHEDULER):
        await bench.submit({"fails": "nothing"}, task_id, "brittle")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    asked = UndoRequest(task_id=task_id, requester="cli:ada", reason="returned")
    with monkeypatch.context() as release:
        loaded(release, steps=(BRITTLE.steps[0], replace(BRITTLE.steps[2], request=lambda *_: None)))
        async with bench.worker(Role.SCHEDULER):
            await bench.stores.store.requests.undo(asked)
            await bench.reached(task_id, TaskState.COMPENSATION_FAILED)
    page = await bench.page(task_id)
    assert [(e.step, e.state) for e in page.undo_log] == [("first", UndoState.LOGGED), ("second", UndoState.FAILED)]
    assert "has no step second" in (page.task.error or {})["message"]
    async with bench.worker(Role.SCHEDULER):
        await bench.stores.store.requests.undo(asked)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert simulators.live(task_id) == {"mail": 1}
