"""The crash matrix: a process dies at every write and every call of every role, and every task ends as it must.

`python -m chaos.matrix [--seed N] [--pairs 200] [--only TEXT] [--runners 4] [-o FILE]`. Exit code 1: an invariant
does not hold; 2: a kill did not come, so the run shows nothing. The same seed gives the same cases, and `--only`
chooses among them by a part of their names.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from chaos.evidence import audit_all
from chaos.fork_server import ForkServer
from chaos.matrix.case_run import CaseRun
from chaos.matrix.case_runner import CaseRunner
from chaos.matrix.cases import Case, pairs, singles
from chaos.matrix.report import Report
from devstack.stack.environment import SERVICES
from domain.states import TaskState
from store.reads import TaskPage

EXEMPT = frozenset({"before:was_written", "after:was_written"})
"""Asked only where an acknowledgement was lost: `tests/integration/test_lost_commit.py`."""


async def matrix(cases: Sequence[Case], seed: int, folder: Path, *, runners: int = 4, tell: Any = print) -> Report:
    """Run cases, several at once; the first runner has proxies, for the cases that need them."""
    report, began = Report(seed, cases=len(cases)), monotonic()
    through, direct = (
        deque((n, c) for n, c in enumerate(cases) if c.scenario.proxied is proxied) for proxied in (True, False)
    )
    async with AsyncExitStack() as stack:
        fork_server = await stack.enter_async_context(ForkServer())
        opened = [
            await stack.enter_async_context(
                CaseRunner(folder / f"runner-{n}", fork_server, proxied=n == 0 and bool(through))
            )
            for n in range(runners)
        ]
        async with asyncio.TaskGroup() as group:
            for runner in opened:
                group.create_task(
                    work_off(runner, report, tell, *((through, direct) if runner is opened[0] else (direct,)))
                )
        passed = set().union(*(runner.passed for runner in opened))
    report.unkilled = sorted({_kind(p) for p in passed} - {_kind(p) for p in report.kills} - EXEMPT)
    report.duration_s = monotonic() - began
    return report


def _kind(point: str) -> str:
    """A point of whichever step: a rare step of a common write is no reason to call a run invalid."""
    return ":".join(point.split(":")[:2])


async def work_off(runner: CaseRunner, report: Report, tell: Any, *waiting: deque[tuple[int, Case]]) -> None:
    """Take cases until there are none, and audit all of them in the end."""
    names = {}
    await runner.follow()
    while queue := next(filter(None, waiting), None):
        number, case = queue.popleft()
        names[task_id := f"m-{number}"] = case.name
        began = monotonic()
        run = CaseRun(runner, task_id, case.kills, armed=not case.scenario.later, sweep=not case.scenario.supervised)
        problems = [f"{case.name}: {problem}" for problem in await _problems(run, case)]
        report.kills.update(run.fired)
        report.violations += problems
        if len(run.fired) < len(case.kills):
            report.unfired.append(case.name)
        tell("\n".join([f"{monotonic() - began:5.1f} s  {case.name}", *(f"  VIOLATION {p}" for p in problems)]))
    answers = runner.testbed.answers
    found, _ = await audit_all(runner.testbed, answers, runs_of={a.task_id for a in answers})
    report.violations += [f"{names.get(v.task_id, v.task_id)}: {v.invariant}: {v.text}" for v in found.violations]


async def _problems(run: CaseRun, case: Case) -> list[str]:
    """Carry out a case; what is not as it must be in the end."""
    workers = len(run.runner.dead)
    try:
        await run.go(case.scenario.script)
        page = await run.page()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", *await _last_words(run)]
    found = []
    if page.task.state is not case.scenario.end:
        found.append(f"it is {page.task.state}, not {case.scenario.end}")
    if (live := run.testbed.simulators.live(run.task_id)) != case.scenario.effects:
        found.append(f"effects are {live}, not {dict(case.scenario.effects)}")
    if len(run.runner.dead) == workers:
        found += _begun_again(page)
    return [*found, *_called_wrongly(run, page)]


async def _last_words(run: CaseRun) -> Iterator[str]:
    """How far a task came that is not where it must be."""
    try:
        page = await run.page()
    except Exception as error:
        return iter([f"nothing is known of it: {error}"])
    told = [f"{e.number} {e.kind} by {e.actor}, epoch {e.epoch}: {dict(e.detail)}" for e in page.events[-8:]]
    steps = {s.name: (s.state.value, s.budget_left, s.undo_budget_left) for s in page.steps}
    log = [f"its worker: {line}" for line in run.worker.child.log_tail().splitlines()[-20:]]
    return iter([f"it is {page.task.state}, not before {page.task.not_before}", f"steps {steps}", *told, *log])


def _called_wrongly(run: CaseRun, page: TaskPage) -> Iterator[str]:
    """Calls of a step that came after it was finished, and keys that are not the same in every attempt.

    Another key needs a person: a resubmit, or a word that an undo which has failed is to go on.
    """
    renewed = {
        False: sum(e.kind == "resubmitted" for e in page.events),
        True: sum(e.state_from is TaskState.COMPENSATION_FAILED for e in page.events),
    }
    keys: dict[tuple[str, bool], set[str]] = {}
    finished: dict[tuple[str, bool], datetime] = {}
    for event in page.events:
        for word, undo in (("completed", False), ("undone", True)):
            if step := event.detail.get(word):
                finished[step, undo] = event.at
    for service in SERVICES:
        for call in run.testbed.simulators.ledger(service, run.task_id)["calls"]:
            step, undo = call["key"].split(":")[1], call["undo"]
            keys.setdefault((step, undo), set()).add(call["key"])
            end = finished.get((step, undo))
            if end and datetime.fromisoformat(call["received_at"]) > end:
                yield f"{'undo of ' if undo else ''}step {step} was called again after it was finished"
    for (step, undo), used in keys.items():
        if len(used) > 1 + renewed[undo]:
            yield f"step {step} was called with keys {used}"


def _begun_again(page: TaskPage) -> Iterator[str]:
    """Steps that a run has begun more than once; only one whose worker has died may have to."""
    begun = Counter((e.detail["began"], e.detail.get("run_id")) for e in page.events if "began" in e.detail)
    for (step, run_id), times in begun.items():
        if times > 1:
            yield f"living_run_begins_a_step_once: run {run_id} has begun step {step} {times} times"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="chaos.matrix", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the pairs")
    parser.add_argument("--pairs", type=int, default=200, help="how many")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases whose name has this in it; repeatable")
    parser.add_argument("--runners", type=int, default=4, help="cases at once, each on a stack of its own")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="takes the report as JSON")
    given = parser.parse_args()
    only = given.only or [""]
    cases = [c for c in (*singles(), *pairs(given.pairs, given.seed)) if any(o in c.name for o in only)]
    if not cases:
        parser.error(f"no case has {given.only!r} in its name")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the servers then as well
    with TemporaryDirectory(prefix="matrix-") as folder:
        report = asyncio.run(matrix(cases, given.seed, Path(folder), runners=min(given.runners, len(cases))))
    if given.only:
        report.unkilled = []  # some cases can't kill everywhere
    print("\n".join(report.lines()))
    if given.output:
        given.output.write_text(report.as_json())
    sys.exit(report.code)
