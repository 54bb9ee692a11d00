"""The audit on real databases and ledgers: silent on what the system did, loud on rows that were damaged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.load import open_loader
from audit.picture import Terms
from audit.run import Findings, audit
from domain.states import TaskState
from runtime.settings import Settings
from tests.acceptance.test_cli import starter
from tests.conftest import Bench, Databases, Simulators

DAMAGE = {
    "events_are_numbered_without_a_gap": "DELETE FROM event WHERE task_id = %s AND number = 3",
    "events_fold_to_the_row": "UPDATE task SET state = 'Compensated' WHERE task_id = %s",
    "epochs_rise_by_one_with_each_claim": "UPDATE event SET epoch = 7 WHERE task_id = %s AND number = 3",
    "only_the_holder_moves_it": "UPDATE event SET actor = 'order/x/1' WHERE task_id = %s AND number = 4",
    "processed_is_complete": "UPDATE step SET state = 'Failed' WHERE task_id = %s AND name = 'ship'",
    "undo_log_fits_the_steps": "DELETE FROM compensation WHERE task_id = %s AND step = 'charge'",
    "calls_stay_within_what_was_granted": "UPDATE step SET budget_left = budget WHERE task_id = %s",
    "begun_task_has_its_business_record": "UPDATE task SET record_digest = 'other' WHERE task_id = %s",
    "effect_belongs_to_a_task": "DELETE FROM task WHERE task_id = %s",
}


async def audited(databases: Databases, simulators: Simulators, page: int = 1) -> Findings:
    terms = Terms(detection_delay=timedelta(seconds=3))
    async with open_loader(databases.app, databases.orders, terms, timedelta(seconds=30)) as loader:
        return await audit(loader, None, await loader.ledgers(simulators.url), page=page)


def damage(databases: Databases, statement: str, task_id: str) -> None:
    with psycopg.connect(databases.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(statement, (task_id,))


@pytest.mark.demand("H10")
async def test_audit_is_silent_on_what_ran_and_finds_each_damage(
    bench: Bench, databases: Databases, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    declined = f"{task_id}-declined"
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.submit({**order, "card_token": "tok_declined"}, declined)
        assert await bench.settled(task_id, declined) is TaskState.PROCESSED
        await bench.settled(declined)
    clean = await audited(databases, simulators)
    assert (clean.violations, clean.tasks, clean.without_ledgers) == ([], 2, 0)
    result = await starter(settings, "audit", "--ledgers", simulators.url)
    assert (result.code, result.out.split(",")[0]) == (0, "tasks: 2"), result.err
    missed = []
    for invariant, statement in DAMAGE.items():
        with psycopg.connect(databases.owner) as keeper:
            kept = {t: keeper.execute(f"SELECT * FROM {t}").fetchall() for t in TABLES}  # noqa: S608 (fixed names)
        damage(databases, statement, task_id)
        found = await audited(databases, simulators, page=500)
        if (invariant, task_id) not in {(v.invariant, v.task_id) for v in found.violations}:
            missed.append(invariant)
        assert {v.task_id for v in found.violations} == {task_id}
        restore(databases, kept)
    assert missed == []
    damage(databases, DAMAGE["events_are_numbered_without_a_gap"], declined)
    result = await starter(settings, "audit", declined, "-o", "json")
    assert result.code == 1, result.err
    assert "events_are_numbered_without_a_gap" in {v["invariant"] for v in result.data["violations"]}
    assert (await starter(settings, "audit", "nobody")).code == 3


TABLES = ("task", "step", "compensation", "event")


def restore(databases: Databases, kept: dict[str, list[tuple[Any, ...]]]) -> None:
    """Put the rows back as they were."""
    with psycopg.connect(databases.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        for table, rows in kept.items():
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 (fixed names)
            for row in rows:
                values = [Jsonb(v) if isinstance(v, dict) else v for v in row]
                holes = ", ".join(["%s"] * len(values))
                connection.execute(f"INSERT INTO {table} VALUES ({holes})", values)  # noqa: S608 (fixed names)
