"""A call of unknown outcome that its service no longer remembers, past the pivot: a person looks, and it goes on."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from domain.states import StepState, TaskState
from runtime.settings import Settings
from testing.bench import Bench
from testing.databases import Databases
from testing.simulators import Simulators
from tests.acceptance.test_cli import starter

WHY = ("--evidence", "no such name in the zone", "--reason", "left since Friday", "--by", "anna")
WORD = ("--no-effect", "name", *WHY)


def called(databases: Databases, task_id: str, ago: str) -> None:
    """The last call for the name had until then; the first one was days before."""
    with psycopg.connect(databases.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            "UPDATE step SET complete_by = clock_timestamp() - %(ago)s::interval,"
            " key_since = clock_timestamp() - interval '3 days' WHERE task_id = %(id)s AND name = 'name'",
            {"ago": ago, "id": task_id},
        )


@pytest.mark.failure(31)
@pytest.mark.demand("C15", "F12", "G1", "G4", "G5")
async def test_machine_past_its_pivot_goes_on_by_a_persons_finding(
    bench: Bench,
    simulators: Simulators,
    settings: Settings,
    databases: Databases,
    machine: dict[str, Any],
    task_id: str,
) -> None:
    simulators.fault("cloud", "error", status=500, match={"path": "/cloud/names", "task_id": task_id})
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled_with_sweeps(task_id) is TaskState.ERROR
        simulators.heal()
        called(databases, task_id, "2 days")
        again = await starter(settings, "resubmit", task_id, "--wait")
        shown = await starter(settings, "show", task_id)
        undo = await starter(settings, "compensate", task_id, "--reason", "never mind")
        called(databases, task_id, "-1 minute")
        early = await starter(settings, "resubmit", task_id, *WORD)
        called(databases, task_id, "2 days")
        tried = await starter(settings, "resubmit", task_id, *WORD, "--dry-run", "-o", "json")
        assert (await bench.page(task_id)).task.state is TaskState.ERROR
        done = await starter(settings, "resubmit", task_id, *WORD, "--wait", "-o", "json")
    assert again.code == 1, again.err
    assert f"`python starter.py resubmit {task_id} --no-effect name --evidence TEXT --reason TEXT`" in shown.out
    assert "key_forgotten" in shown.out
    assert (undo.code, early.code) == (4, 4)
    assert "past its pivot" in undo.err
    assert f"a call of step name of task {task_id} may be on its way until 20" in early.err
    assert tried.data["no_effect"]["key_generation"] == {"from": 0, "to": 1}
    assert done.code == 0, done.err
    assert done.data["state"] == "Processed"
    page = await bench.page(task_id)
    (event,) = (e for e in page.events if "no_effect" in e.detail)
    assert (event.actor, event.detail["no_effect"]["evidence"]) == ("cli:anna", "no such name in the zone")
    name = page.steps[-1]
    assert (name.state, name.key_generation, name.outcome_unknown) == (StepState.COMPLETED, 1, False)
    assert simulators.live(task_id) == {"cloud": 4}
