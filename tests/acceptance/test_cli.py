"""The command line as people and programs use it: real processes, on real parts, judged by exit code and output."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from devstack.processes.ports import free_port
from domain.states import TaskState
from runtime.roles import Role
from runtime.settings import Settings
from store.admission import ALIVE
from supervisor.schedule import SCHEDULE_ID
from testing import ROOT
from testing.bench import Bench
from testing.records import FULL
from testing.settings import environment
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.workers import WorkerProcess


@dataclass(frozen=True)
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


async def starter(settings: Settings, *arguments: str, stdin: str | bytes = b"", **env: str) -> Result:
    """Run `python starter.py …` with these settings."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "starter.py"),
        *arguments,
        env={**os.environ, **environment(settings), "NO_COLOR": "1", **env},
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode() if isinstance(stdin, str) else stdin)
    assert b"Traceback" not in err, err.decode()
    return Result(process.returncode or 0, out.decode(), err.decode())


def message(task_id: str, record: dict[str, Any], definition: str = "order", **more: Any) -> str:
    """A submission as one line of JSON."""
    return json.dumps({"task_id": task_id, "definition": definition, "record": record, **more})


def nowhere(settings: Settings, **changes: Any) -> Settings:
    """The settings with a state store that nothing answers at."""
    dsn = SecretStr(f"postgresql://app:app@127.0.0.1:{free_port()}/state")
    return settings.model_copy(update={"database_url": dsn, **changes})


def claiming_when_told(settings: Settings) -> Settings:
    """The settings of a worker that does not look by itself, so that no claim comes before its business record."""
    return settings.model_copy(update={"poll_interval": timedelta(seconds=10)})


# --- start and submit -----------------------------------------------------------------------------------------


@pytest.mark.demand("A1", "G12")
async def test_start_runs_good_lines_to_their_end_and_names_bad_ones(
    bench: Bench, settings: Settings, order: dict[str, Any], machine: dict[str, Any], task_id: str, tmp_path: Path
) -> None:
    file = tmp_path / "mixed.jsonl"
    negative = json.loads(json.dumps(order))
    negative["lines"][0]["unit_price_minor"] = -5
    lines = [
        message(task_id, order),
        '{"task_id": "x", ',
        message("neg-1", negative),
        message("bad id!", order),
        message("lost-1", order, "parcels"),
        "",
        message("big-1", {**order, "card_token": "x" * 300_000}),
        message("wrong-1", {**order, "currency": 7}),
        message(f"{task_id}-vm", machine, "provisioning"),
    ]
    file.write_bytes("\n".join(lines).encode() + b'\n{"task_id": "\xff"}\n')
    async with bench.worker(settings=claiming_when_told(bench.settings)):
        result = await starter(settings, "start", str(file), "--wait", "--timeout", "40")
    assert result.code == 2, result.err
    assert await bench.settled(task_id, f"{task_id}-vm") is TaskState.PROCESSED
    for task, definition in ((task_id, "order"), (f"{task_id}-vm", "provisioning")):
        assert f"{definition}/{task}/1" in result.out
        assert f"/namespaces/default/workflows/{definition}%2F{task}%2F1" in result.out
    assert "line 2: Invalid JSON" in result.err
    assert "line 3: record.lines.0.unit_price_minor: " in result.err
    assert "not -5" in result.err
    assert "line 4: task_id: " in result.err
    assert 'not "bad id!"' in result.err
    assert "line 5: definition: there is no 'parcels' (there are: order, provisioning)" in result.err
    assert "line 7: the message has " in result.err
    assert "at most 262144" in result.err
    assert "line 8: record.currency: " in result.err
    assert "line 10: not UTF-8: byte 0xff at column 14" in result.err
    assert {t.task_id for t in await bench.reads.newest_tasks()} == {task_id, f"{task_id}-vm"}


@pytest.mark.demand("G12", "B1")
async def test_start_claims_its_own_tasks_and_no_others(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    """A worker without a dispatcher is not there: only the starter can have claimed, and only what it was given."""
    await bench.submit(order, f"{task_id}-other")
    result = await starter(
        settings, "start", "-", "-o", "json", stdin=json.dumps(json.loads(message(task_id, order)), indent=2)
    )
    assert result.code == 0, result.err
    (answer,) = result.data
    assert (answer["line"], answer["verdict"], answer["attempt"]) == (1, "accepted", f"order/{task_id}/1")
    assert answer["state"] == "Processing"
    claimed = (await bench.page(task_id)).task
    assert str(claimed.worker).startswith("cli@")
    assert (await bench.page(f"{task_id}-other")).task.state is TaskState.PENDING
    run = await bench.client.get_workflow_handle(f"order/{task_id}/1").describe()
    assert run.workflow_type == "order"
    assert answer["link"].endswith(f"/namespaces/default/workflows/order%2F{task_id}%2F1/{run.run_id}/history")


@pytest.mark.failure(41)
@pytest.mark.demand("A1")
async def test_start_without_temporal_keeps_the_submission_and_says_so(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    started, submitted = await asyncio.gather(
        starter(settings, "start", "-", stdin=message(task_id, order), TEMPORAL_ADDRESS=gone),
        starter(settings, "submit", "--no-wait", "-", stdin=message(f"{task_id}-2", order), TEMPORAL_ADDRESS=gone),
    )
    assert started.code == 5
    assert gone in started.err
    assert f"submitted, not started: workers will claim {task_id}" in started.err
    assert submitted.code == 0, submitted.err
    async with bench.worker():
        assert await bench.settled(task_id, f"{task_id}-2") is TaskState.PROCESSED


@pytest.mark.demand("G12", "A4", "A2")
async def test_submit_says_who_claimed_it_and_tells_conflict_from_repetition(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    changed = {**order, "currency": "CHF"}
    async with bench.worker(settings=claiming_when_told(bench.settings)):
        first = await starter(settings, "submit", "-", "--submitter", "shop", stdin=message(task_id, order))
        lines = f"{message(task_id, order)}\n{message(task_id, changed)}\n"
        second = await starter(settings, "submit", "-", "-o", "json", stdin=lines)
    assert first.code == 0, first.err
    assert f"order/{task_id}/1" in first.out
    assert f"order%2F{task_id}%2F1" in first.out
    assert (await bench.page(task_id)).task.submitter == "shop"
    assert second.code == 4
    assert [a["verdict"] for a in second.data] == ["already accepted", "conflict"]
    assert f"line 2: task {task_id}: conflict: its content differs" in second.err


async def test_submit_says_that_no_live_worker_has_the_definition(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    with psycopg.connect(settings.admin_database_url.get_secret_value()) as connection:
        connection.execute("UPDATE presence SET seen_at = clock_timestamp() - interval '1 minute'")
    result = await starter(settings, "submit", "-", stdin=message(task_id, order))
    assert result.code == 0
    assert "no live worker has the definition 'order'" in result.err
    shown = await starter(settings, "show", task_id)
    assert "next: claimable now, but no live worker has its definition" in shown.out


@pytest.mark.failure(4)
async def test_only_a_worker_that_was_stopped_counts_no_more(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    with psycopg.connect(settings.admin_database_url.get_secret_value()) as connection:
        connection.execute("DELETE FROM presence")  # the bench's own

    async def two_are_there() -> bool:
        return len(await bench.stores.store.database.rows("SELECT DISTINCT worker FROM presence")) == 2

    async with bench.worker(Role.SCHEDULER):
        with WorkerProcess(settings, roles=Role.SCHEDULER) as other:
            await eventually(two_are_there)
            await other.stop()
        assert not await two_are_there()
        assert any(d.name == "order" and since < 3 * ALIVE for d, since in await bench.reads.definitions() if since)
    result = await starter(settings, "submit", "-", stdin=message(task_id, order))
    assert "no live worker has the definition 'order'" in result.err
    assert "live workers have its definition" not in result.err


@pytest.mark.failure(113)
@pytest.mark.demand("A7", "A9")
async def test_refused_submission_says_why_and_when_to_retry(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    full = settings.model_copy(update={"max_pending": 1})
    lines = f"{message(task_id, order)}\n{message(f'{task_id}-2', order)}\n"
    result = await starter(full, "submit", "--no-wait", "-", stdin=lines)
    assert result.code == 4
    assert f"line 2: task {task_id}-2: refused: 1 order tasks are pending, which is the cap" in result.err
    assert "try again in 10 s" in result.err
    assert [t.task_id for t in await bench.reads.newest_tasks()] == [task_id]


async def test_usage_errors_exit_2_before_anything_is_asked(settings: Settings) -> None:
    cases = [
        (("submit", "-"), " \n", "standard input is empty"),
        (("start", "no-such-file.jsonl"), "", "no-such-file.jsonl can't be read: No such file"),
        (("show", "a/b"), "", "task id 'a/b' must match"),
    ]
    results = await asyncio.gather(*(starter(nowhere(settings), *a, stdin=s) for a, s, _ in cases))
    for result, (_, _, said) in zip(results, cases, strict=True):
        assert (result.code, result.out) == (2, ""), result
        assert f"error: {said}" in result.err


@pytest.mark.failure(23)
@pytest.mark.demand("A1")
async def test_every_line_of_a_batch_is_answered_whatever_the_others_hold(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    def odd(text: str) -> str:
        return message("odd-1", order).replace("1250", text)

    odd_ones = [odd(x) for x in ("NaN", "-Infinity", "1e999", "9" * 5000, "[" * 5000, '"\\u0000"', "true", '"2999"')]
    lines = [message(task_id, order), *odd_ones, message("-o", order), message(f"{task_id}-2", order)]
    text = "\ufeff" + "\r\n\r\n".join(lines)
    as_json = await starter(settings, "submit", "--no-wait", "-", "-o", "json", stdin=text)
    as_text = await starter(settings, "submit", "--no-wait", "-", stdin=text)
    assert (as_json.code, as_text.code) == (2, 2)
    verdicts = ["accepted", *["invalid"] * (len(odd_ones) + 1), "accepted"]
    assert [(a["line"], a["verdict"]) for a in as_json.data] == [(2 * n + 1, v) for n, v in enumerate(verdicts)]
    assert [line.split()[0] for line in as_text.out.splitlines()] == [task_id, f"{task_id}-2"]
    for number, answer in enumerate(as_json.data):
        assert all(f"line {2 * number + 1}: {p}" in as_text.err for p in answer["problems"])
    problems = [a["problems"][0].split(": ")[0] for a in as_json.data[1:9]]
    price, deep = "record.lines.0.unit_price_minor", "nested deeper than 64 levels"
    assert problems == [*[price] * 4, deep, *[price] * 3]


@pytest.mark.failure(25)
@pytest.mark.demand("A1")
async def test_lines_behind_a_lost_store_are_answered_as_not_tried(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    """The orders database takes the first line, and no further one."""
    with psycopg.connect(settings.admin_orders_url.get_secret_value()) as connection:
        connection.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'no space' USING ERRCODE = 'disk_full'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER full_disk BEFORE INSERT ON business_record FOR EACH ROW"
            f" WHEN (NEW.task_id <> '{task_id}') EXECUTE FUNCTION full_disk()"
        )
    lines = "\n".join(message(f"{task_id}{more}", order) for more in ("", "-2", "-3", "-4"))
    result = await starter(settings, "submit", "--no-wait", "-", "-o", "json", stdin=lines)
    assert result.code == 5
    assert [a["verdict"] for a in result.data] == ["accepted", "unreachable", "not tried", "not tried"]
    assert "the 2 behind it were not tried" in result.err


async def test_malformed_object_over_several_lines_is_one_error(bench: Bench, settings: Settings) -> None:
    text = '{\n  "task_id": "a",\n  "definition": "order"\n  "record": {}\n}\n'
    result = await starter(settings, "submit", "-", stdin=text)
    assert result.code == 2
    assert result.err.count("line 1:") == 1
    assert "at line 4 column 3" in result.err


# --- what can't be reached ------------------------------------------------------------------------------------


async def test_unreachable_store_exits_5_and_says_where_and_what_to_do(settings: Settings) -> None:
    result = await starter(nowhere(settings), "list")
    assert result.code == 5
    assert "state database can't be reached" in result.err
    assert "starter.py doctor" in result.err


@pytest.mark.failure(58)
async def test_wrong_schema_version_names_the_migrate_command_which_mends_it(bench: Bench, settings: Settings) -> None:
    with psycopg.connect(settings.admin_database_url.get_secret_value()) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
        connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
    refused = await starter(settings, "list")
    assert refused.code == 5
    assert "schema version none" in refused.err
    assert "python starter.py migrate" in refused.err
    mended = await starter(settings, "migrate", "-o", "json")
    assert (mended.code, mended.data) == (0, {"migrated": ["state", "orders"]}), mended.err
    assert await bench.reads.newest_tasks() == []


async def test_migrate_with_an_address_that_is_not_the_owners_is_denied(settings: Settings) -> None:
    with psycopg.connect(settings.admin_database_url.get_secret_value()) as connection:
        connection.execute("DROP TABLE alembic_version")
    result = await starter(settings.model_copy(update={"admin_database_url": settings.database_url}), "migrate")
    assert result.code == 6
    assert "SAS_ADMIN_DATABASE_URL is not the owner's address" in result.err


async def test_commands_find_the_embedded_stack_by_what_up_wrote_down(bench: Bench, settings: Settings) -> None:
    (settings.state_dir / "env.json").write_text(json.dumps(environment(settings)))
    unset = {name: "" for name in environment(settings) if name.startswith("SAS_") and name.endswith("_URL")}
    result = await starter(settings, "list", "-o", "json", **unset)
    assert (result.code, result.data) == (0, []), result.err


@pytest.mark.failure(97)
@pytest.mark.parametrize(
    "stray",
    [
        {"TEMPORAL_ADDRESS": "127.0.0.1:1"},
        {"TEMPORAL_NAMESPACE": "another"},
        {"TEMPORAL_API_KEY": "key-of-the-cloud"},
        {"TEMPORAL_TLS_SERVER_NAME": "cloud"},
        {"TEMPORAL_PROFILE": "cloud", "TEMPORAL_CONFIG_FILE": "/dev/null"},
        {"SAS_ORDERS_URL": "postgresql://app@127.0.0.1:1/orders"},
        {"SAS_ADMIN_DATABASE_URL": "postgresql://owner@127.0.0.1:1/state"},
    ],
)
async def test_shell_that_leads_away_from_the_stack_is_refused_by_name(
    stray: dict[str, str], bench: Bench, settings: Settings
) -> None:
    """A record here and its run on another server would be the worst of both."""
    stack = {
        **environment(settings),
        "TEMPORAL_ADDRESS": os.environ["TEMPORAL_ADDRESS"],
        "TEMPORAL_NAMESPACE": "default",
    }
    (settings.state_dir / "env.json").write_text(json.dumps(stack))
    unset = {name: "" for name in environment(settings) if name.startswith("SAS_") and name.endswith("_URL")}
    agreed = await starter(settings, "doctor", "-o", "json", **unset, PGHOST="127.0.0.2", PGOPTIONS="-c nonsense=1")
    assert {c["what"]: c["well"] for c in agreed.data["checks"]}["Temporal"] is True, agreed.err
    refused = await starter(settings, "list", **{**unset, **stray})
    assert refused.code == 2, refused.err
    assert all(name in refused.err for name in stray)
    assert "key-of-the-cloud" not in refused.err


@pytest.mark.failure(96)
async def test_command_says_of_a_setting_what_is_wrong_with_it(settings: Settings) -> None:
    wrong = await starter(settings, "list", SAS_SWEEP_INTERVAL="10x")
    assert (wrong.code, "SAS_SWEEP_INTERVAL: must be a duration" in wrong.err) == (2, True), wrong.err
    nowhere = {"SAS_DATABASE_URL": "", "SAS_STATE_DIR": "/no/such/folder"}
    missing = await starter(settings, "list", **nowhere, SAS_SWEPT_INTERVAL="1s")
    assert (missing.code, "SAS_STATE_DIR: there is no folder '/no/such/folder'" in missing.err) == (2, True)
    assert "SAS_SWEPT_INTERVAL is no setting: is SAS_SWEEP_INTERVAL meant?" in missing.err


# --- looking --------------------------------------------------------------------------------------------------


@pytest.mark.demand("G12", "F1", "F8")
async def test_compensate_undoes_once_and_show_says_what_was_undone(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        words = ("compensate", task_id, "--reason", "the customer called", "--wait")
        asked = await starter(settings, *words, USER="supervisor", LOGNAME="supervisor")
    assert asked.code == 0, asked.err
    assert "accepted" in asked.out
    assert "Compensated" in asked.out
    assert simulators.live(task_id) == {"mail": 1}
    again, shown, as_json, events = await asyncio.gather(
        starter(settings, "compensate", task_id, "--reason", "again", "-o", "json"),
        starter(settings, "show", task_id),
        starter(settings, "show", task_id, "-o", "json"),
        starter(settings, "watch", task_id, "-o", "json"),
    )
    assert (again.code, again.data["verdict"]) == (0, "already")
    request = next(line for line in shown.out.splitlines() if "undo_requested" in line)
    assert "the customer called" in request
    assert f"cli:{pwd.getpwuid(os.getuid()).pw_name}" in request, "who runs it, whatever the shell says"
    assert "next: nothing: it is undone" in shown.out
    page = as_json.data
    assert [(e["step"], e["outcome"]) for e in page["undo_log"]] == [
        ("ship", "undone"),
        ("charge", "undone"),
        ("stock", "undone"),
    ]
    assert [s["state"] for s in page["steps"]] == ["Undone", "Undone", "Undone", "Completed"]
    assert page["link"].endswith(f"order%2F{task_id}%2F2")
    seen = [json.loads(line) for line in events.out.splitlines()]
    assert events.code == 0
    assert [e["number"] for e in seen] == [e["number"] for e in page["events"]]


@pytest.mark.demand("F1", "F12")
async def test_compensate_past_the_pivot_and_of_no_task_are_told_apart(
    bench: Bench, settings: Settings, machine: dict[str, Any], task_id: str
) -> None:
    async with bench.worker():
        await bench.submit(machine, task_id, "provisioning")
        assert await bench.settled(task_id) is TaskState.PROCESSED
    past, nobody, waited = await asyncio.gather(
        starter(settings, "compensate", task_id, "--reason", "test"),
        starter(settings, "compensate", f"{task_id}-no", "--reason", "test"),
        starter(settings, "wait", task_id, f"{task_id}-no"),
    )
    assert past.code == 4
    assert "past its pivot (step name)" in past.err
    for result in (nobody, waited):
        assert result.code == 3
        assert f"{task_id}-no" in result.err


async def test_list_and_wait_tell_states_and_time_out(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    listed, other, waited = await asyncio.gather(
        starter(settings, "list", "--state", "pending", "--definition", "order", "-o", "json"),
        starter(settings, "list", "--state", "Error"),
        starter(settings, "wait", task_id, "--timeout", "0.2", "-o", "json"),
    )
    assert [t["task_id"] for t in listed.data] == [task_id]
    assert (other.code, other.out, other.err) == (0, "", "no tasks\n")
    assert waited.code == 124
    assert waited.data[0]["state"] == "Pending"
    assert "timed out after 0.2 s" in waited.err


@pytest.mark.failure(8)
@pytest.mark.demand("A4")
async def test_dead_letters_are_listed_and_each_is_shown_with_its_message(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    for task in (task_id, f"{task_id}-2"):
        await bench.submit(order, task)
        await bench.submit({**order, "currency": "CHF"}, task, submitter="shop")
    listed, as_json, of_one, lost = await asyncio.gather(
        starter(settings, "dead-letters"),
        starter(settings, "dead-letters", "-o", "json"),
        starter(settings, "dead-letters", "--task", task_id, "-o", "json"),
        starter(settings, "dead-letters", "99"),
    )
    assert [x["task_id"] for x in as_json.data] == [f"{task_id}-2", task_id]
    assert [x["task_id"] for x in of_one.data] == [task_id]
    (letter,) = of_one.data
    assert (letter["submitter"], letter["message"]["record"]["currency"]) == ("shop", "CHF")
    number = str(letter["id"])
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [str(x["id"]) for x in as_json.data]
    assert "its content differs" in listed.out
    assert (lost.code, "there is no dead letter 99" in lost.err) == (3, True)
    shown, shown_json = await asyncio.gather(
        starter(settings, "dead-letters", number), starter(settings, "dead-letters", number, "-o", "json")
    )
    assert json.loads(shown.out.partition("message:")[2]) == letter["message"]
    assert shown_json.data == letter


@pytest.mark.failure(23)
async def test_id_that_begins_with_a_hyphen_is_given_behind_two(bench: Bench, settings: Settings) -> None:
    """No such id is taken in any more; one that is on record is reached all the same."""
    results = await asyncio.gather(
        *(starter(settings, *words) for words in (("show", "--", "-h"), ("watch", "--", "-h"), ("wait", "--", "-1"))),
        starter(settings, "compensate", "--reason", "test", "--", "-h"),
    )
    for result in results:
        assert result.code == 3
        assert "there is no task" in result.err


# --- acting ---------------------------------------------------------------------------------------------------


@pytest.mark.demand("G1", "G12")
async def test_corrected_order_is_finished_after_resubmission(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    order["address"]["line1"] = "Unknown"
    async with bench.worker():
        failed = await starter(settings, "start", "-", "--wait", stdin=message(task_id, order))
        assert failed.code == 1, failed.err
        fix = ("resubmit", task_id, "--set", "address.line1=Rue 1")
        shown, wrong, lost, unknown, tried = await asyncio.gather(
            starter(settings, "show", task_id),
            starter(settings, "resubmit", task_id, "--set", "lines.0.quantity=0"),
            starter(settings, "resubmit", task_id, "--set", "address.lane=1"),
            starter(settings, "resubmit", f"{task_id}-no"),
            starter(settings, *fix, "--dry-run", "-o", "json"),
        )
        assert f"next: waits for a person: `python starter.py resubmit {task_id}`" in shown.out
        assert "task_in_error" in shown.out
        assert (wrong.code, lost.code, unknown.code) == (2, 2, 3)
        assert "lines.0.quantity: Input should be greater than or equal to 1, not 0" in wrong.err
        assert "address.lane: Extra inputs are not permitted, not 1" in lost.err
        assert tried.data["changes"] == {"address.line1": {"from": "Unknown", "to": "Rue 1"}}
        assert (await bench.page(task_id)).task.state is TaskState.ERROR
        fixed = await starter(settings, *fix, "--wait", "-o", "json")
        assert fixed.code == 0, fixed.err
        assert fixed.data["state"] == "Processed"
        again = await starter(settings, "resubmit", task_id)
    assert again.code == 4
    assert f"task {task_id} is Processed" in again.err
    assert simulators.live(task_id) == FULL
    assert simulators.calls("payments", task_id) == 1, "only the failed step is repeated"
    event = next(e for e in (await bench.page(task_id)).events if e.kind == "resubmitted")
    assert event.detail["changes"] == tried.data["changes"]


@pytest.mark.failure(41)
@pytest.mark.demand("D1", "G12")
async def test_supervise_recovers_an_expired_task_while_temporal_is_down(
    bench: Bench, simulators: Simulators, settings: Settings, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    await bench.stores.store.claims.claim("gone", [("order", 1)], 1)
    held = await starter(settings, "show", task_id)
    assert f"next: held by order/{task_id}/1 until" in held.out
    await bench.expire(task_id)
    swept = await starter(settings, "supervise", "-o", "json", TEMPORAL_ADDRESS=f"127.0.0.1:{free_port()}")
    assert swept.code == 0, swept.err
    assert (swept.data["found"], swept.data["changed"]) == (1, 1)
    assert "stale runs are not cancelled" in swept.err
    assert (await bench.page(task_id)).task.state is TaskState.PENDING


@pytest.mark.failure(95)
async def test_doctor_finds_a_whole_stack_well_and_names_what_is_missing(bench: Bench, settings: Settings) -> None:
    patient = settings.model_copy(update={"sweep_interval": timedelta(minutes=5)})
    async with bench.worker(*Role, settings=patient):
        await bench.sweep()
        well = await starter(patient, "doctor", "-o", "json")
    await bench.client.get_schedule_handle(SCHEDULE_ID).delete()
    broken = patient.model_copy(
        update={"services": {**settings.services, "mail": f"http://127.0.0.1:{free_port()}/mail"}}
    )
    ill = await starter(broken, "doctor", SAS_SUPERVISOR_DATABASE_URL=settings.database_url.get_secret_value())
    assert [c for c in well.data["checks"] if not c["well"]] == []
    assert (well.code, well.data["well"]) == (0, True), well.err
    assert ill.code == 5
    lines = ill.out.splitlines()
    bad = [line.split(" (")[0] for line in lines if line.startswith("✗")]
    assert bad == ["✗ supervisor role", "✗ Schedule supervisor", "✗ service mail", "✗ callbacks"]
    assert sum(line.startswith("    to do: ") for line in lines) == 4
