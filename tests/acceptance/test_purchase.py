"""The whole application with an Agent as one's own would be: a card processor over HTTPS, refunds by charge id."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities.agents import all_agents, catalogue
from definitions import registry
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from testing import ROOT
from testing.bench import Bench
from testing.certificates import Authority
from testing.databases import Databases
from testing.served import served
from testing.settings import environment
from testing.waiting import eventually
from tests.failures.test_security import rows
from tests.shapes.card_processor import TOKEN, CardProcessor
from tests.workers import WorkerProcess

LOADED = {"SAS_AGENTS": "examples.agents", "SAS_DEFINITIONS": "tests.shapes"}
CARD = {"amount_minor": 2500, "card": "tok_visa"}
WRONG = "sk-canary-wrong-74"


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The definition and its Agent, in this process too."""
    for name, value in LOADED.items():
        monkeypatch.setenv(name, value)
    _forget()
    yield
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for found in (all_agents, catalogue, registry):
        found.cache_clear()


@dataclass
class Shop:
    """The card processor, and what a worker is told of it."""

    processor: CardProcessor
    token: Path
    settings: dict[str, str]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """The card processor, behind a certificate of a private authority."""
    authority, token = Authority(tmp_path), tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    processor = CardProcessor()
    async with served(processor.app, authority.issue("cards")) as url:
        files = {"SAS_ACCESS__CARDS__TOKEN_FILE": str(token), "SAS_ACCESS__CARDS__CA_FILE": str(authority.certificate)}
        yield Shop(processor, token, {**LOADED, "SAS_SERVICES__CARDS": url, **files})


async def asks_for_undo(bench: Bench, task_id: str) -> None:
    """A customer changes her mind."""
    asked = await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="ada", reason="returned"))
    assert asked.verdict == "accepted"


@pytest.mark.demand("C1", "F2")
async def test_purchase_is_refunded_by_the_id_of_its_charge(bench: Bench, shop: Shop, task_id: str) -> None:
    with WorkerProcess(bench.settings, more=shop.settings):
        await bench.submit(CARD, task_id, "purchase")
        assert await bench.settled(task_id) is TaskState.PROCESSED
        await asks_for_undo(bench, task_id)
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert (shop.processor.standing, shop.processor.refunds) == ([], ["ch_1"])
    assert (await bench.page(task_id)).undo_log[0].request == {}, "the id is not in the log, it comes with the grant"


@pytest.mark.failure(26, 123)
@pytest.mark.demand("F4", "C15")
async def test_charge_of_a_worker_that_died_is_found_and_refunded(bench: Bench, shop: Shop, task_id: str) -> None:
    """The worker dies with the charge made and nothing of it on record: nobody was told of its id."""
    with WorkerProcess(bench.settings, more=shop.settings, kill_at="replied:call:charge"):
        await bench.submit(CARD, task_id, "purchase")
        await _until(lambda: shop.processor.standing == ["ch_1"])
    await asks_for_undo(bench, task_id)
    with WorkerProcess(bench.settings, more=shop.settings):
        assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
    assert shop.processor.refunds == ["ch_1"]


@pytest.mark.failure(112, 122)
@pytest.mark.demand("C5", "E1", "H3")
async def test_refused_credential_is_an_alert_costs_nothing_and_is_shown_nowhere(
    bench: Bench, shop: Shop, databases: Databases, task_id: str
) -> None:
    """The service quotes the token in its refusal. Once the file holds the right one, the task goes on."""
    shop.token.write_text(WRONG)
    with WorkerProcess(bench.settings, more=shop.settings):
        await bench.submit(CARD, task_id, "purchase")

        async def alerted() -> bool:
            return [a.kind for a in (await bench.page(task_id)).alerts] == ["lacking"]

        await eventually(alerted)
        step = (await bench.page(task_id)).steps[0]
        assert (step.budget_left, step.failure_count) == (9, 0)
        shop.token.write_text(TOKEN)
        assert await bench.settled(task_id) is TaskState.PROCESSED
    assert shop.processor.standing == ["ch_1"]
    attempts = [bench.client.get_workflow_handle(a) for a in await bench.attempts(task_id)]
    shown = {
        "histories": "".join([str((await a.fetch_history()).events) for a in attempts]),
        "rows": rows(databases.owner, "task", "step", "event", "alert", "compensation", "service", "service_event"),
        "logs": "".join(f.read_text() for f in bench.settings.state_dir.glob("worker-*.log")),
    }
    assert "Invalid API Key provided: [redacted]" in shown["rows"]
    assert [name for name, text in shown.items() if not text or WRONG in text or TOKEN in text] == []


@pytest.mark.failure(95)
@pytest.mark.demand("H5")
@pytest.mark.parametrize(
    ("arguments", "code"), [(("worker.py", "--roles", "scheduler"), 2), (("starter.py", "doctor"), 5)], ids=str
)
async def test_missing_credential_is_named(bench: Bench, shop: Shop, arguments: tuple[str, ...], code: int) -> None:
    shop.token.unlink()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        env={**os.environ, **environment(bench.settings), **shop.settings, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    words, _ = await process.communicate()
    assert "SAS_ACCESS__CARDS__TOKEN_FILE can't be used: FileNotFoundError" in words.decode().replace("\n", " ")
    assert process.returncode == code


async def _until(holds: Callable[[], bool]) -> None:
    async def condition() -> bool:
        return holds()

    await eventually(condition)
