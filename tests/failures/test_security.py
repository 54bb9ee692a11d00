"""Forged answers, hostile strings, personal data, and what is not to be shipped."""

from __future__ import annotations

import ast
import json
import re
import socket
from typing import Any

import httpx
import psycopg
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cli.app import checked_id
from domain.faults import NotFound, UsageError
from domain.ids import TASK_ID
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.callbacks.addresses import callback_addresses
from runtime.roles import Role
from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.databases import Databases
from testing.simulators import Simulators
from tests.failures.sources import SHIPPED, imported, sources, used
from tests.workers import WorkerProcess

ANSWER = {"response_id": "answer-1", "status": "done", "result": {"machine_id": "m-1", "ip": "192.0.2.7"}}


def rows(dsn: str, *tables: str) -> str:
    """Everything in these tables, as text."""
    with psycopg.connect(dsn) as connection:
        found = [connection.execute(f"SELECT t::text FROM {t} AS t").fetchall() for t in tables]  # noqa: S608 (our own)
    return "\n".join(row[0] for table in found for row in table)


# --- answers that come later ----------------------------------------------------------------------------------


@pytest.mark.failure(11, 107, 110)
@pytest.mark.demand("C11")
async def test_answer_to_a_changed_address_is_refused_and_kept_nowhere(
    bench: Bench, settings: Settings, databases: Databases, machine: dict[str, Any], task_id: str
) -> None:
    await bench.submit(machine, task_id, "provisioning")
    signature, key = callback_addresses(settings).address(f"{task_id}:machine:0").rsplit("/", 2)[1:]
    flipped = [
        signature[:n] + ("1" if signature[n] == "0" else "0") + signature[n + 1 :] for n in range(len(signature))
    ]
    forged = [(f, key) for f in (*flipped, signature.upper(), signature[:-1], signature + "0", "0")]
    forged += [(signature, k) for k in (f"{task_id}:machine:1", f"{task_id}:name:0", "other:machine:0", f"{key}%00")]
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient(base_url=settings.callback_url) as http:
        answers = [(await http.post(f"/callbacks/{s}/{k}", json=ANSWER)).status_code for s, k in forged]
        assert answers == [403] * len(forged)
        assert rows(databases.owner, "inbox") == ""
        assert (await http.post(f"/callbacks/{signature}/{key}", json=ANSWER)).status_code == 204
        again = [(await http.post(f"/callbacks/{signature}/{key}", json=ANSWER)).status_code for _ in range(20)]
        assert again == [204] * 20
    with psycopg.connect(databases.owner) as connection:
        assert connection.execute("SELECT response_id, deliveries FROM inbox").fetchall() == [("answer-1", 21)]


@pytest.mark.failure(107)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"status": "done", "result": {"machine_id": "m-1", "ip": "192.0.2.7"}}',
        json.dumps({**ANSWER, "response_id": "x" * 201}).encode(),
        json.dumps({**ANSWER, "status": "perhaps"}).encode(),
        json.dumps({**ANSWER, "result": []}).encode(),
        json.dumps({**ANSWER, "result": {"machine_id": None}}).encode(),
        b'{"response_id": "r", "status": "done", "result": ' + b'{"a":' * 20_000,
    ],
    ids=["empty", "half", "list", "null", "no-id", "long-id", "no-status", "no-result", "other-result", "deep"],
)
async def test_answer_that_is_no_answer_is_refused_and_kept_nowhere(
    bench: Bench, settings: Settings, databases: Databases, machine: dict[str, Any], task_id: str, body: bytes
) -> None:
    await bench.submit(machine, task_id, "provisioning")
    address = callback_addresses(settings).address(f"{task_id}:machine:0")
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        answer = await http.post(address, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert rows(databases.owner, "inbox") == ""


@pytest.mark.failure(110)
@pytest.mark.demand("C11")
async def test_response_id_of_one_service_takes_no_answer_from_another(
    bench: Bench, settings: Settings, databases: Databases, machine: dict[str, Any], task_id: str
) -> None:
    """Whoever knows its own address only can neither answer for others, nor keep their answers out."""
    keys = [f"{task_id}-{n}:machine:0" for n in (1, 2)]
    async with bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        for key in keys:
            await bench.submit(machine, key.partition(":")[0], "provisioning")
            assert (await http.post(callback_addresses(settings).address(key), json=ANSWER)).status_code == 204
    with psycopg.connect(databases.owner) as connection:
        kept = connection.execute("SELECT key, response_id, deliveries FROM inbox ORDER BY key").fetchall()
    assert kept == [(key, "answer-1", 1) for key in keys]


# --- hostile strings ------------------------------------------------------------------------------------------

HOSTILE = [
    "'; DROP TABLE task; --",
    "' OR '1'='1",
    "x' UNION SELECT * FROM task --",
    "%",
    "_",
    "%s",
    "%(task_id)s",
    "{0}",
    "$1",
    "\\",
    '"',
    "../../etc/passwd",
    "<script>alert(1)</script>",
    "a\nb",
    "\x1b[31m",
    "\u202etxt",
    "x" * 10_000,
    "",
]


@pytest.mark.failure(116)
@examples(max_examples=50, deadline=None)
@given(st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_whatever_passes_for_a_task_id_is_made_of_harmless_characters(text: str) -> None:
    try:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,128}", checked_id(text))
    except UsageError:
        assert not TASK_ID.fullmatch(text)


@pytest.mark.failure(116)
async def test_hostile_text_in_any_filter_or_field_is_only_text(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    await bench.submit(order, task_id)
    before = await bench.page(task_id)
    store, reads = bench.stores.store, bench.reads
    for text in HOSTILE:
        with pytest.raises(NotFound):
            await reads.page(text)
        assert await reads.tasks([text]) == []
        assert await reads.newest_tasks(definition=text) == []
        assert await reads.steps([text]) == []
        assert await reads.events([text]) == []
        assert await store.tasks.find(text) is None
        assert await store.claims.claim(text, [(text, 1)], 4, [text]) == []
        assert (await store.requests.resubmit(text, requester=text, reason=text, changes={}))[0] is False
        undo = UndoRequest(task_id=task_id, requester=text, reason=text, holder=text, definition=text)
        assert (await store.requests.undo(undo)).verdict == "not_found"
    after = await bench.page(task_id)
    assert (after.task, list(after.events)) == (before.task, list(before.events))


@pytest.mark.failure(116)
async def test_hostile_text_is_kept_as_it_was_given(bench: Bench, order: dict[str, Any], task_id: str) -> None:
    for number, text in enumerate(t for t in HOSTILE if 0 < len(t) <= 128):
        task = f"{task_id}-{number}"
        await bench.submit(order, task, submitter=text, reply_to=text)
        await bench.stores.store.requests.undo(UndoRequest(task_id=task, requester=text, reason=text))
        page = await bench.page(task)
        assert (page.task.submitter, page.task.reply_to) == (text, text)
        assert (page.events[-1].actor, page.events[-1].detail["reason"]) == (text, text)


# --- what must not leave the house ----------------------------------------------------------------------------

CANARY = "canary7"


def with_canaries(order: dict[str, Any]) -> dict[str, Any]:
    """The order with a canary in everything that is personal or secret."""
    customer = {"name": f"{CANARY} Okafor", "email": f"{CANARY}@example.com"}
    address = {**order["address"], "name": f"{CANARY} Okafor", "line1": f"{CANARY} Street 1"}
    return {**order, "customer": customer, "address": address, "card_token": f"tok_{CANARY}"}


@pytest.mark.failure(111)
@pytest.mark.demand("H3")
async def test_personal_data_is_in_no_log_summary_or_state_row(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    """One order goes well, one is declined and undone, one is contradicted; histories do hold the record."""
    good, refused = f"{task_id}-good", f"{task_id}-refused"
    simulators.fault("payments", "refuse", match={"task_id": refused, "undo": False})
    with WorkerProcess(bench.settings) as worker:
        for task in (good, refused):
            await bench.submit(with_canaries(order), task)
        await bench.submit({**with_canaries(order), "currency": "CHF"}, good)
        await bench.settled(good, refused)
        await worker.stop()
    logs = "".join(f.read_text() for f in bench.settings.state_dir.glob("worker-*.log"))
    assert "worker ready" in logs
    attempts = [*await bench.attempts(good), *await bench.attempts(refused)]
    assert len(attempts) == 3
    runs = [bench.client.get_workflow_handle(a) for a in attempts]
    shown = ""
    for run in runs:
        description = (await run.describe()).raw_description
        info = description.workflow_execution_info
        shown += f"{info.search_attributes} {info.memo} {info.type} {description.execution_config.user_metadata}"
        shown += "".join(str(e.user_metadata) for e in (await run.fetch_history()).events)
    assert good in shown
    kept = rows(databases.owner, "task", "step", "event", "alert", "compensation", "inbox", "definition", "sweep")
    assert good in kept
    assert [name for name, text in {"logs": logs, "runs": shown, "rows": kept}.items() if CANARY in text] == []
    assert CANARY in rows(databases.orders_owner, "business_record")


@pytest.mark.failure(106)
async def test_nothing_is_sent_to_a_reply_address(bench: Bench, order: dict[str, Any], task_id: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        async with bench.worker():
            await bench.submit(order, task_id, reply_to=f"http://127.0.0.1:{server.getsockname()[1]}/")
            assert await bench.settled(task_id) is TaskState.PROCESSED
        with pytest.raises(BlockingIOError):
            server.accept()


# --- what is shipped ------------------------------------------------------------------------------------------


@pytest.mark.failure(115)
def test_nothing_that_is_read_can_run_as_code() -> None:
    modules = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "jsonpickle", "joblib", "yaml", "xml"}
    builtins = {"eval", "exec", "compile", "__import__"}
    found = {}
    for path, tree in sources():
        found[path] = {name for name in imported(tree) if name.split(".")[0] in modules} | (used(tree) & {"PickleType"})
        found[path] |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & builtins
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.failure(118)
def test_nothing_that_breaks_things_on_purpose_is_in_the_system() -> None:
    """Faults are injected by `chaos` and the tests, around the real parts, and by simulators that no part imports."""
    system = set(SHIPPED) - {"devstack"}
    strangers = ("tests", "testing", "chaos", "devstack")
    imports = {path: {n for n in imported(tree) if n.split(".")[0] in strangers} for path, tree in sources(*system)}
    assert {path: names for path, names in imports.items() if names} == {}
    words = re.compile(r"KILL_AT|PLANT|kill_point|fault_point|monkeypatch")
    assert [path for path, _ in sources(*system) if words.search((ROOT / path).read_text())] == []


@pytest.mark.failure(118)
def test_wheel_holds_no_tests_and_the_image_no_rehearsal_either() -> None:
    assert "tests" not in SHIPPED
    copied = [line.split()[1:-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY")]
    assert [
        place
        for places in copied
        for place in places
        if "test" in place or "chaos" in place or place in (".", "./", "/")
    ] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert "*" in ignored
    assert "!tests/" not in ignored
