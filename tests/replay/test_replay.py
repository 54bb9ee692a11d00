"""Recorded histories of released versions replay on the code as it is now (H6).

`RECORD_HISTORIES=v1 pytest tests/replay` records the scenarios anew, into `histories/v1`; do so once a release.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from definitions import registry
from domain.ids import undo_request_of
from runtime.plugin import new_plugin
from runtime.roles import Role
from supervisor.sweep import Supervise
from testing.bench import Bench
from testing.simulators import Simulators
from tests.replay.scenarios import SCENARIOS, WITHOUT_CALLBACKS
from workflows.compensation_request import CompensationRequest
from workflows.scheduler import Scheduler

HISTORIES = Path(__file__).parent / "histories"
STACK_TRACE = re.compile(r'("stackTrace": ")(?:[^"\\]|\\.)*')
RECORDED = sorted(HISTORIES.glob("*/*.json"))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One scenario is of a definition that is made to fail."""
    monkeypatch.setenv("SAS_DEFINITIONS", "tests.failures.definitions")
    registry.cache_clear()
    yield
    monkeypatch.undo()
    registry.cache_clear()


def replayer() -> Replayer:
    """The workflows of this checkout, with the plugin of production."""
    return Replayer(workflows=[Scheduler, CompensationRequest, Supervise], plugins=[new_plugin()])


def history_of(file: Path) -> WorkflowHistory:
    """A recorded history; its workflow id follows the scenario's name."""
    return WorkflowHistory.from_json(file.stem.split("--", 1)[1].replace("__", "/"), file.read_text())


@pytest.mark.failure(86)
@pytest.mark.demand("H6", "B8")
@pytest.mark.parametrize("file", RECORDED, ids=[f"{f.parent.name}-{f.stem.split('--')[0]}" for f in RECORDED])
async def test_recorded_history_replays(file: Path) -> None:
    await replayer().replay_workflow(history_of(file))


@pytest.mark.failure(86)
@pytest.mark.demand("H6")
async def test_history_that_does_not_fit_the_code_is_caught() -> None:
    """The gate can fail: the same history with another first activity does not replay."""
    file = next(f for f in RECORDED if f.stem.startswith("order_processed"))
    tampered = file.read_text().replace("payments.charge", "payments.refund")
    assert tampered != file.read_text()
    history = WorkflowHistory.from_json(history_of(file).workflow_id, tampered)
    with pytest.raises(NondeterminismError):
        await replayer().replay_workflow(history)


@pytest.mark.failure(86)
@pytest.mark.demand("H6")
@pytest.mark.parametrize("name", SCENARIOS)
async def test_every_scenario_replays_as_it_ran(
    bench: Bench,
    simulators: Simulators,
    order: dict[str, Any],
    machine: dict[str, Any],
    task_id: str,
    name: str,
) -> None:
    async with bench.worker(*([Role.SCHEDULER, Role.AGENTS] if name in WITHOUT_CALLBACKS else [])):
        await SCENARIOS[name](bench, simulators, order, machine, task_id)
        histories = await histories_of(bench, task_id)
    for history in histories:
        await replayer().replay_workflow(history)
        if version := os.environ.get("RECORD_HISTORIES"):
            keep(HISTORIES / version, name, history)


async def histories_of(bench: Bench, task_id: str) -> list[WorkflowHistory]:
    """What Temporal has of a task when all has ended: its attempts, and who asked for its undo if a workflow did."""
    attempts = await bench.attempts(task_id)
    handles = [bench.client.get_workflow_handle(i) for i in (*attempts, undo_request_of(attempts[0]))]
    return [await h.fetch_history() for h in handles if await has_ended(h)]


async def has_ended(handle: WorkflowHandle[Any, Any]) -> bool:
    """Wait for the end of a run, whatever it is; False if there is none."""
    try:
        await handle.result()
    except WorkflowFailureError:
        return True
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


def keep(folder: Path, scenario: str, history: WorkflowHistory) -> None:
    """Write a history where the next release finds it, without the name and the paths of the machine that made it."""
    folder.mkdir(parents=True, exist_ok=True)
    slug = history.workflow_id.replace("/", "__")
    last = history.workflow_id.rsplit("/", 1)[1]
    for old in folder.glob(f"{scenario}-{last}--*.json"):
        old.unlink()
    (folder / f"{scenario}-{last}--{slug}.json").write_text(
        STACK_TRACE.sub(r"\1", history.to_json()).replace(gethostname(), "host")
    )
