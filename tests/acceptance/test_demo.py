"""`starter.py demo`: it ends well by itself, and its checks would have noticed if it had not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.demo_picture import Picture
from cli.demo_services import Ledgers
from cli.demo_story import Kill
from cli.demo_verdict import Verdict, judge
from domain.messages import Json
from domain.states import StepState, TaskState
from pipelines import registry
from runtime.embedded.postgres import EmbeddedPostgres
from store.tables import Step, Task
from tests.acceptance.test_up import ROOT, starter
from tests.conftest import ORDER

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = {"stock": "stock", "charge": "payments", "ship": "shipping", "confirm": "mail"}
EXAMPLES = [json.loads(line) for line in (ROOT / "examples" / "orders.jsonl").read_text().splitlines()]


@pytest.mark.demand("B5")
@pytest.mark.timeout(180)
async def test_demo_breaks_everything_and_ends_well_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    try:
        async with starter("demo", "--state-dir", str(folder), "-o", "json") as command:
            async with asyncio.timeout(150):  # with set-up, on a busy machine
                stdout, stderr = await command.process.communicate()
    finally:
        await asyncio.to_thread(EmbeddedPostgres(folder).delete_data)
    assert command.process.returncode == 0, stderr.decode()
    summary = json.loads(stdout)
    assert [c for c in summary["checks"] if not c["holds"]] == []
    assert summary["ok"]
    assert summary["seconds"] < 60

    states = {t["task_id"]: t["state"] for t in summary["tasks"]}
    declined = {e["task_id"] for e in EXAMPLES if e["record"]["card_token"] == "tok_declined"}
    assert len(states) == 33
    assert {i for i, s in states.items() if s == "Compensated"} == declined
    assert {i for i, s in states.items() if s != "Compensated"} == {i for i, s in states.items() if s == "Processed"}
    assert summary["corrected"] == [e["task_id"] for e in EXAMPLES if e["record"]["address"]["line1"] == "Unknown"]

    assert any(k["held"] for k in summary["kills"])
    assert {(f["service"], f["kind"]) for f in summary["faults"] if f["fired"]} == {
        ("stock", "latency"),
        ("payments", "lost_reply"),
        ("shipping", "outage"),
    }
    assert sum(t["recoveries"] for t in summary["tasks"]) > 0
    assert b"is back as process" in stderr


async def test_demo_does_not_delete_the_data_of_a_stack_that_is_to_last(tmp_path: Path) -> None:
    (tmp_path / "temporal").mkdir()
    async with starter("demo", "--state-dir", str(tmp_path)) as command:
        assert await command.ends() == 4
        assert "choose another --state-dir" in await command.rest()
    assert (tmp_path / "temporal").exists()


class End:
    """An end of the demo with one order, Processed as it should be; to be tampered with."""

    def __init__(self) -> None:
        self.task = _task("o-1")
        self.steps = [_step("o-1", name, n) for n, name in enumerate(STEPS)]
        self.ledgers: dict[str, Json] = {s: {"effects": [], "tombstones": [], "calls": [], "refusals": []} for s in
                                         ("stock", "payments", "shipping", "mail", "cloud")}  # fmt: skip
        for step in STEPS:
            self.effect(step)

    def effect(self, step: str, *, generation: int = 0) -> None:
        """One call for a step, with an effect."""
        key, ledger = f"o-1:{step}:{generation}", self.ledgers[STEPS[step]]
        body = {"amount_minor": 2500, "currency": "EUR"}
        ledger["effects"].append({"task_id": "o-1", "step": step, "key": key, "undone_at": None, "body": body})
        ledger["calls"].append({"key": key, "undo": False, "outcome": "executed"})

    def judged(self) -> Verdict:
        """What the demo says of it."""
        picture = Picture([self.task], self.steps, [], Ledgers(self.ledgers))
        return judge(picture, {"o-1": ORDER}, registry(), [], [Kill("worker-2", 7, ["o-1"])], [])


def _task(task_id: str) -> Task:
    return Task(
        task_id=task_id, definition="order", version=1, state=TaskState.PROCESSED, epoch=1, record_digest="",
        submitter="cli", data_class="internal", not_before=NOW, created_at=NOW, updated_at=NOW, state_since=NOW,
    )  # fmt: skip


def _step(task_id: str, name: str, position: int) -> Step:
    return Step(
        task_id=task_id, name=name, position=position, state=StepState.COMPLETED, budget=2, budget_left=1,
        undo_budget=2, undo_budget_left=2,
    )  # fmt: skip


def test_good_end_passes_every_check() -> None:
    assert End().judged().holds


def _second_charge(end: End) -> None:
    end.effect("charge", generation=1)


def _no_shipment(end: End) -> None:
    end.ledgers["shipping"]["effects"].clear()


def _compensated_but_charged(end: End) -> None:
    end.task.state = TaskState.COMPENSATED


def _wrong_amount(end: End) -> None:
    end.ledgers["payments"]["effects"][0]["body"]["amount_minor"] += 1


def _too_many_calls(end: End) -> None:
    end.ledgers["mail"]["calls"] *= 3


def _left_in_error(end: End) -> None:
    end.task.state = TaskState.ERROR


def _left_pending(end: End) -> None:
    end.task.state = TaskState.PENDING


@pytest.mark.parametrize(
    ("tamper", "rule"),
    [
        (_second_charge, "no effect stands twice"),
        (_no_shipment, "Processed means"),
        (_compensated_but_charged, "Compensated means"),
        (_wrong_amount, "charged less refunded"),
        (_too_many_calls, "no step got more calls"),
        (_left_in_error, "waits for a person"),
        (_left_pending, "every task is settled"),
    ],
)
def test_demo_notices(tamper: Callable[[Any], None], rule: str) -> None:
    end = End()
    tamper(end)
    assert any(rule in c.rule for c in end.judged().checks if not c.holds)
