"""What a run with faults came to: passed, failed (something does not hold), or invalid (too little has happened)."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from random import Random

import httpx
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError

from audit.checks import Violation
from audit.task import Tolerances
from chaos.evidence import audit_all
from chaos.faults import Injector
from chaos.figures import Figures, Guards, count, missing, rows
from chaos.histories import replay
from chaos.testbed import ChaosTestbed
from chaos.workload import Traffic
from definitions.order import Order
from domain.ids import undo_request_id
from domain.messages import Json
from domain.states import TaskState
from runtime.wiring import caps
from testing import ROOT

_TOLERANCES = Tolerances(
    detection_delay=timedelta(seconds=2),
    claim_delay=timedelta(seconds=30),
    network_delay=timedelta(seconds=15),
    clock_skew=timedelta(0),
)
"""Two sweeps; and what the faults that there are make of a call's way."""

_ANSWERS_IN_S = 30.0
"""When all has healed, and all tasks are settled: a request for undo has its verdict."""

_UNDO_ENDS = (TaskState.COMPENSATED, TaskState.COMPENSATION_FAILED)


class Code(IntEnum):
    """Exit codes of a run."""

    PASSED = 0
    VIOLATED = 1
    INVALID = 2


@dataclass
class Verdict:
    """Violations, what did not happen, and the figures."""

    figures: Figures
    violations: list[Violation]
    gaps: list[str]

    @property
    def code(self) -> Code:
        """Violations weigh more than what is missing."""
        if self.violations:
            return Code.VIOLATED
        return Code.INVALID if self.gaps else Code.PASSED

    def as_json(self) -> Json:
        """All of it."""
        return {
            "figures": asdict(self.figures),
            "violations": [asdict(v) for v in self.violations],
            "gaps": self.gaps,
        }

    def lines(self) -> Iterator[str]:
        """All of it, for people."""
        yield "\nmachine: " + ", ".join(f"{k} {v}" for k, v in machine().items())
        yield f"\n{'fault':<34}{'done':>6}{'seen':>6}"
        yield from (f"{kind:<34}{done:>6}{seen:>6}" for kind, (done, seen) in self.figures.kinds.items())
        yield ""
        yield from (f"{k:<16}{v}" for k, v in asdict(self.figures).items() if k != "kinds")
        yield ""
        yield from (f"VIOLATION  {v.task_id}  {v.invariant}: {v.text}" for v in self.violations)
        yield from (f"MISSING    {gap}" for gap in self.gaps)
        yield f"{self.code.name.lower()}: {len(self.violations)} violations, {len(self.gaps)} gaps"


async def evaluate(traffic: Traffic, injector: Injector, guards: Guards, random: Random, replayed: int) -> Verdict:
    """Gather all evidence, and look at what happened at all. `replayed`: histories, at most."""
    testbed = traffic.testbed
    figures = Figures()
    found, ledgers = await audit_all(testbed, traffic.answers, tolerances=_TOLERANCES, caps=caps(testbed.direct))
    histories = await replay(testbed.client, random, replayed)
    violations = [
        *found.violations,
        *(Violation("history_replays", w, text) for w, text in histories.diverged.items()),
        *[v async for v in _undone(testbed, traffic)],
        *_money(testbed, traffic, figures),
    ]
    count(figures, testbed, traffic, injector, found, histories, ledgers)
    return Verdict(figures, violations, list(missing(figures, guards)))


def machine() -> Json:
    """What it ran on, and which commit ran."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607 (whichever git there is)
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    cpus = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "model": cpus[0].partition(": ")[2] if cpus else platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": commit or "unknown",
    }


async def _undone(testbed: ChaosTestbed, traffic: Traffic) -> AsyncIterator[Violation]:
    """Whoever asked for undo, and whose request was taken, gets it; a task past its pivot may say no."""
    query = "SELECT task_id, definition, state, past_pivot(task_id) FROM task WHERE task_id = ANY(%s)"
    for task_id, definition, state, is_past_pivot in rows(testbed, query, list(traffic.asked)):
        way, said = traffic.asked[task_id], ""
        if way == "signal":
            said = await _verdict(testbed, undo_request_id(definition, task_id))
            may_stand = said == "past_pivot"
        else:
            may_stand = way == "attempt" and is_past_pivot
        if state not in _UNDO_ENDS and not may_stand:
            told = f", its verdict: {said}" if said else ""
            yield Violation("undo_that_was_asked_for_is_done", task_id, f"asked by {way}{told}; it is {state}")


async def _verdict(testbed: ChaosTestbed, workflow_id: str) -> str:
    """The verdict of a request for undo; why there is none, where there is none."""
    try:
        async with asyncio.timeout(_ANSWERS_IN_S):
            return str((await testbed.client.get_workflow_handle(workflow_id).result())["verdict"])
    except (WorkflowFailureError, RPCError, TimeoutError) as error:
        return f"none ({error!r})"


def _money(testbed: ChaosTestbed, traffic: Traffic, figures: Figures) -> Iterator[Violation]:
    """What customers have paid and not got back is what the Processed orders cost, by the submitters' own books."""
    answer = httpx.get(f"{testbed.simulators.url}/control/summary", timeout=60).raise_for_status().json()
    booked = answer["payments"]["money"]
    processed = rows(testbed, "SELECT task_id FROM task WHERE state = 'Processed' AND definition = 'order'")
    records = {p.task_id: p.record for p in traffic.plans}
    owed = sum(Order.model_validate(records[task_id]).total_minor for (task_id,) in processed)
    kept = booked["charged_minor"] - booked["refunded_minor"]
    open_ = sum(amount for (amount,) in rows(testbed, _STILL_CHARGED))
    figures.money = {k: booked[k] for k in ("charged_minor", "refunded_minor")} | {"owed_minor": owed}
    figures.money["charged_to_unfinished_minor"] = open_
    if kept != owed + open_:
        yield Violation("money_adds_up", "*", f"kept {kept}, the Processed orders cost {owed}, others {open_}")


_STILL_CHARGED = """
SELECT (c.request ->> 'amount_minor')::bigint
FROM task AS t
INNER JOIN step AS s ON s.task_id = t.task_id AND s.name = 'charge' AND s.state = 'Completed'
INNER JOIN compensation AS c ON c.task_id = t.task_id AND c.step = 'charge'
WHERE t.state = 'Error'
"""
"""Orders that wait for a person with their charge done."""
