"""The audit on real databases and ledgers: silent on what the system did, loud on rows that were damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.evidence import SubmissionReplies, SubmissionReply
from audit.run import AuditResult, audit
from audit.sources.ledgers import read_ledgers
from audit.sources.runs import read_runs
from audit.sources.stores import open_loader
from audit.task import Tolerances
from domain.states import TaskState
from runtime.settings import Settings
from store.admission import AdmissionCaps
from testing.bench import Bench
from testing.databases import Databases
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.acceptance.test_cli import starter

DAMAGE = {
    "events_are_numbered_without_a_gap": "DELETE FROM event WHERE task_id = %s AND number = 4",
    "events_fold_to_the_row": "UPDATE task SET state = 'Compensated' WHERE task_id = %s",
    "epochs_rise_by_one_with_each_claim": "UPDATE event SET epoch = 7 WHERE task_id = %s AND number = 4",
    "only_the_holder_moves_it": "UPDATE event SET actor = 'order/x/1' WHERE task_id = %s AND number = 5",
    "only_one_run_writes_for_an_attempt": (
        """UPDATE event SET detail = detail || '{"run_id": "reset"}' WHERE task_id = %s AND number = 5"""
    ),
    "no_step_begins_at_an_open_breaker": (
        "INSERT INTO service_event (service, kind, state_from, state_to, cause, at)"
        " VALUES ('mail', 'opened', 'closed', 'open', %s, clock_timestamp() - interval '1 hour')"
    ),
    "processed_is_complete": "UPDATE step SET state = 'Failed' WHERE task_id = %s AND name = 'ship'",
    "undo_log_fits_the_steps": "DELETE FROM compensation WHERE task_id = %s AND step = 'charge'",
    "calls_stay_within_what_was_granted": "UPDATE step SET budget_left = budget WHERE task_id = %s",
    "begun_task_has_its_business_record": "UPDATE task SET record_digest = 'other' WHERE task_id = %s",
    "acknowledged_task_is_whole": "UPDATE task SET record_digest = 'other' WHERE task_id = %s",
    "failures_are_counted_once": "UPDATE task SET failure_count = 3 WHERE task_id = %s",
    "calls_are_made_in_their_time": "UPDATE event SET at = at - interval '1 hour' WHERE task_id = %s AND number < 7",
    "run_has_its_claim": "UPDATE event SET epoch = 7 WHERE task_id = %s AND number = 3",
    "task_was_submitted": "UPDATE task SET record_digest = 'other' WHERE task_id = %s",
    "admission_caps_held": "UPDATE event SET at = at + interval '1 hour' WHERE task_id = %s AND state_to = 'Processed'",
    "acknowledged_task_is_there": "DELETE FROM task WHERE task_id = %s",
    "effect_belongs_to_a_task": "DELETE FROM task WHERE task_id = %s",
    "run_belongs_to_a_task": "DELETE FROM task WHERE task_id = %s",
    "record_belongs_to_a_task": "DELETE FROM task WHERE task_id = %s",
}


async def audited(
    bench: Bench, databases: Databases, simulators: Simulators, answers: SubmissionReplies
) -> AuditResult:
    """By all evidence, but of Temporal only these tasks: the server has seen other tests."""
    tolerances = Tolerances(detection_delay=timedelta(seconds=3))
    async with open_loader(databases.app, databases.orders, tolerances, timedelta(seconds=30)) as loader:
        runs = await read_runs(bench.client, await loader.now())
        return await audit(
            loader,
            None,
            await read_ledgers(simulators.url, await loader.now()),
            runs=replace(runs, by_task={t: r for t, r in runs.by_task.items() if t in answers.by_task}),
            replies=answers,
            caps=AdmissionCaps(1, 1, timedelta(days=1)),
            page=1,
        )


def damage(databases: Databases, statement: str, task_id: str) -> None:
    with psycopg.connect(databases.owner) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(statement, (task_id,))


@pytest.mark.failure(59)
@pytest.mark.demand("H10")
async def test_audit_is_silent_on_what_ran_and_finds_each_damage(
    bench: Bench, databases: Databases, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    declined = f"{task_id}-declined"
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await bench.submit({**order, "card_token": "tok_declined"}, declined)
        await bench.settled(declined)
    answers = SubmissionReplies.of([await answered(bench, t) for t in (task_id, declined)])
    await listed(bench, answers)
    clean = await audited(bench, databases, simulators, answers)
    assert (clean.violations, clean.tasks, clean.without_ledgers) == ([], 2, 0)
    missed = []
    for invariant, statement in DAMAGE.items():
        with psycopg.connect(databases.owner) as keeper:
            kept = {t: keeper.execute(f"SELECT * FROM {t}").fetchall() for t in TABLES}  # noqa: S608 (fixed names)
        damage(databases, statement, task_id)
        found = await audited(bench, databases, simulators, answers)
        named = task_id if invariant != "admission_caps_held" else declined
        if (invariant, named) not in {(v.invariant, v.task_id) for v in found.violations}:
            missed.append(invariant)
        assert {v.task_id for v in found.violations} <= {task_id, named}
        restore(databases, kept)
    assert missed == []


@pytest.mark.failure(13)
@pytest.mark.demand("H10", "C11")
@pytest.mark.parametrize(
    "changed",
    [{"kind": "failed", "code": "no_capacity"}, {"result": {"machine_id": "another"}}],
    ids=["kind", "result"],
)
async def test_audit_finds_a_step_that_differs_from_its_first_answer(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    machine: dict[str, Any],
    task_id: str,
    changed: dict[str, Any],
) -> None:
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    answers = SubmissionReplies.of([await answered(bench, task_id)])
    assert (await audited(bench, databases, simulators, answers)).violations == []
    with psycopg.connect(databases.owner) as connection:
        statement = """UPDATE inbox SET body = jsonb_build_object('outcome', body -> 'outcome' || %s) WHERE key = %s"""
        assert connection.execute(statement, (Jsonb(changed), f"{task_id}:machine:0")).rowcount == 1
    found = (await audited(bench, databases, simulators, answers)).violations
    assert [(v.invariant, v.task_id) for v in found] == [("first_answer_decides_its_step", task_id)]


@pytest.mark.demand("H10")
async def test_audit_command_hears_every_witness_and_says_what_does_not_hold(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    settings: Settings,
    order: dict[str, Any],
    task_id: str,
    tmp_path: Path,
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.settled(task_id)
    answers = [await answered(bench, task_id)]
    await listed(bench, SubmissionReplies.of(answers))
    log = tmp_path / "submissions.jsonl"
    log.write_text("".join(a.model_dump_json() + "\n" for a in answers))
    evidence = ("--ledgers", simulators.url, "--submissions", str(log))
    result = await starter(settings, "audit", *evidence, "--caps")
    assert (result.code, result.out.split(",")[0]) == (0, "tasks: 1"), result.err
    damage(databases, DAMAGE["run_has_its_claim"], task_id)
    result = await starter(settings, "audit", task_id, *evidence, "--histories", "-o", "json")
    assert result.code == 1, result.err
    assert "run_has_its_claim" in {v["invariant"] for v in result.data["violations"]}
    log.write_text(json.dumps({"task_id": task_id}))
    assert (await starter(settings, "audit", *evidence)).code == 2
    assert (await starter(settings, "audit", "nobody")).code == 3


async def answered(bench: Bench, task_id: str) -> SubmissionReply:
    """What the submitter of a task was told."""
    task = (await bench.page(task_id)).task
    return SubmissionReply(task_id=task_id, submitter="cli", digest=task.record_digest, verdict="accepted", new=True)


async def listed(bench: Bench, answers: SubmissionReplies) -> None:
    """Wait until Temporal lists the runs of these tasks: its visibility lags."""

    async def there() -> bool:
        found = [w.id.split("/")[1] async for w in bench.client.list_workflows() if w.id.count("/") == 2]
        return set(answers.by_task) <= set(found)

    await eventually(there)


TABLES = ("task", "step", "compensation", "event", "service_event")


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
