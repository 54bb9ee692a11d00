"""`starter.py demo`: it ends well by itself, and its checks would have noticed if it had not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cli.app import ExitCode
from cli.output import Format
from devstack.demo.command import conclude
from devstack.demo.moment import Moment, look
from devstack.demo.services import SimulatorControl, Tally
from devstack.demo.story import Kill
from devstack.demo.verdict import DemoVerdict, audited, verdict_of
from devstack.servers.postgres import EmbeddedPostgres
from domain.messages import Json
from domain.states import TaskState
from testing import ROOT
from testing.bench import Bench
from testing.databases import Databases
from testing.simulators import Simulators
from tests.acceptance.test_up import starter

EXAMPLES = [json.loads(line) for line in (ROOT / "examples" / "orders.jsonl").read_text().splitlines()]
RULES = (
    "every task is settled",
    "waits for a person",
    "no effect stands twice",
    "Processed means",
    "Compensated means",
    "charged less refunded",
    "no step got more calls",
    "the worker was killed",
    "every other invariant",
)


@pytest.mark.failure(1)
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
    assert {rule for rule in RULES if any(rule in c["rule"] for c in summary["checks"])} == set(RULES)
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


async def test_demo_deletes_no_data_of_a_lasting_stack(tmp_path: Path) -> None:
    (tmp_path / "temporal").mkdir()
    async with starter("demo", "--state-dir", str(tmp_path)) as command:
        assert await command.ends() == 4
        assert "choose another --state-dir" in await command.rest()
    assert (tmp_path / "temporal").exists()


@dataclass
class Standing:
    """How things stand at the end: one order is Processed, and one is Compensated. To be tampered with."""

    processed: str
    compensated: str
    moment: Moment
    records: dict[str, Any]
    kills: list[Kill]

    def effect(self, service: str) -> Json:
        """What a service did for the order that is Processed."""
        return next(e for e in self.rows(service, "effects") if e["task_id"] == self.processed)

    def rows(self, service: str, part: str) -> list[Json]:
        """A part of a service's ledger."""
        found: list[Json] = self.moment.tally.by_service[service][part]
        return found

    def leave(self, state: TaskState) -> None:
        """Let the order that is Processed be in another state."""
        tasks = {t.task_id: t for t in self.moment.tasks}
        tasks[self.processed] = tasks[self.processed].model_copy(update={"state": state})
        self.moment = replace(self.moment, tasks=list(tasks.values()))

    async def judged(self, databases: Databases) -> DemoVerdict:
        """What the demo says of it."""
        findings = await audited(databases.app, databases.orders, SameTally(self.moment.tally))
        return verdict_of(self.moment, findings, self.records, [], self.kills, [])


class SameTally(SimulatorControl):
    """Finds the same in the ledgers, whenever it looks."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    async def tally(self) -> Tally:
        return self._tally


def _second_charge(standing: Standing) -> str:
    standing.rows("payments", "effects").append(standing.effect("payments") | {"key": f"{standing.processed}:charge:1"})
    return standing.processed


def _no_shipment(standing: Standing) -> str:
    standing.rows("shipping", "effects").remove(standing.effect("shipping"))
    return standing.processed


def _compensated_but_reserved(standing: Standing) -> str:
    for effect in standing.rows("stock", "effects"):
        effect["undone_at"] = None
    return standing.compensated


def _wrong_amount(standing: Standing) -> str:
    standing.effect("payments")["body"]["amount_minor"] += 1
    return standing.processed


def _order_that_costs_more(standing: Standing) -> str:
    standing.records[standing.processed]["lines"][0]["quantity"] += 1
    return "due 37.50"


def _call_that_nobody_granted(standing: Standing) -> str:
    standing.rows("mail", "calls").append(standing.rows("mail", "calls")[0])
    return standing.processed


def _left_in_error(standing: Standing) -> str:
    standing.leave(TaskState.ERROR)
    return standing.processed


def _left_pending(standing: Standing) -> str:
    standing.leave(TaskState.PENDING)
    return standing.processed


def _killed_with_nothing_in_hand(standing: Standing) -> str:
    standing.kills[:] = [Kill("worker-2", 7, [])]
    return "0 tasks held"


def _effect_for_nobody(standing: Standing) -> str:
    standing.rows("mail", "effects").append(standing.effect("mail") | {"task_id": "nobody", "key": "nobody:confirm:0"})
    return "nobody"


TAMPERINGS: tuple[tuple[Callable[[Standing], str], str], ...] = (
    (_second_charge, "no effect stands twice"),
    (_no_shipment, "Processed means"),
    (_compensated_but_reserved, "Compensated means"),
    (_wrong_amount, "charged less refunded"),
    (_order_that_costs_more, "charged less refunded"),
    (_call_that_nobody_granted, "no step got more calls"),
    (_left_in_error, "waits for a person"),
    (_left_pending, "every task is settled"),
    (_killed_with_nothing_in_hand, "the worker was killed"),
    (_effect_for_nobody, "every other invariant"),
)
"""What somebody does to it, which returns what must be named, and the rule that this breaks."""


async def test_demo_fails_with_whatever_contradicts_it_and_names_the_task(
    bench: Bench,
    databases: Databases,
    simulators: Simulators,
    order: dict[str, Any],
    task_id: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    declined = f"{task_id}-declined"
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.submit({**order, "card_token": "tok_declined"}, declined)
        assert await bench.settled(task_id, declined) is TaskState.PROCESSED

    async def stands() -> Standing:
        async with SimulatorControl(simulators.url) as control:
            moment = await look(bench.reads, control, [task_id, declined])
        records = await bench.stores.orders.load([task_id, declined])
        return Standing(
            task_id, declined, moment, {i: r.record for i, r in records.items()}, [Kill("worker-2", 7, [task_id])]
        )

    good = await (await stands()).judged(databases)
    assert [c for c in good.checks if not c.holds] == []
    assert conclude(good, 1, Format.TEXT) is ExitCode.OK
    missed = []
    for tamper, rule in TAMPERINGS:
        tampered = await stands()
        named = tamper(tampered)
        capsys.readouterr()
        code = conclude(await tampered.judged(databases), 1, Format.TEXT)
        told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("✗")]
        if code is not ExitCode.FAILED or not any(rule in line and named in line for line in told):
            missed.append((tamper.__name__, code, told))
    assert missed == []
