"""Runs of a tier, one after the other in one process, each with another bug in it, or with none.

`python -m chaos.planted.tier NAME ... [--seed N]` prints a line for each: `REPORT`, and as JSON what the tier
reports. Those of the matrix share one runner, whose databases and ledgers are emptied between them. `-` stands for
the cases of all the others with no bug in them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import psycopg

from chaos import run as chaos_run
from chaos.fork_server import ForkServer
from chaos.matrix.case_runner import CaseRunner
from chaos.matrix.cases import Case
from chaos.matrix.no_deaths import NO_DEATHS
from chaos.matrix.report import Report
from chaos.matrix.runner import work_off
from chaos.matrix.scenarios import SCENARIOS
from chaos.planted.bug import CHAOS, Bug
from chaos.planted.bugs import NOTHING, named
from chaos.planted.patches import Behaviour, put_in
from chaos.testbed import ChaosTestbed

REPORT = "REPORT "
"""Before a line that is a report: Temporal's client prints lines of its own."""

_SMALL = chaos_run.Options(tasks=60, seconds=12, faults=6, seed=0, least=0, max_in_flight=12, max_pending=6)
_EMPTY = "TRUNCATE task, step, compensation, event, alert, dead_letter, inbox, service, service_event, sweep"


def case_named(name: str) -> Case:
    """A case of the matrix, `SCENARIO: POINT + POINT`; without points where nobody dies.

    Raises:
        KeyError: There is no such scenario.
    """
    scenario, _, points = name.partition(": ")
    return Case({s.name: s for s in (*SCENARIOS, *NO_DEATHS)}[scenario], tuple(points.split(" + ")) if points else ())


class Bench:
    """A runner of the matrix, opened with `async with`, for one bug after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self._cases_run = folder, AsyncExitStack(), 0

    async def __aenter__(self) -> Bench:
        async with AsyncExitStack() as stack:
            fork_server = await stack.enter_async_context(ForkServer())
            self._runner = await stack.enter_async_context(CaseRunner(self._folder, fork_server, proxied=True))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def run(self, bug: Bug | None, names: Sequence[str]) -> list[str]:
        """What the matrix reports of these cases. A kill that did not come is reported as well."""
        testbed, cases = self._runner.testbed, [case_named(name) for name in names]
        report = Report(seed=0, cases=len(cases))
        with ExitStack() as stack:
            if bug:
                stack.callback(put_in(bug.patches))  # this process submits, and sweeps
                stack.enter_context(_disarmed(testbed, bug))
                testbed._environment["PLANT"] = bug.name
            await work_off(self._runner, report, lambda _: None, deque(enumerate(cases, self._cases_run)))
        self._cases_run += len(cases)
        await self._empty()
        return [*report.violations, *(f"{name}: every_kill_comes: nobody died" for name in report.unfired)]

    async def _empty(self) -> None:
        """Leave nothing of what was done, and nobody who has a bug."""
        testbed = self._runner.testbed
        testbed._environment.pop("PLANT", None)
        await testbed.worker(0).kill()
        with psycopg.connect(testbed.owner) as connection:
            connection.execute(_EMPTY)
        with psycopg.connect(testbed.postgres.part.dsn("orders")) as connection:
            connection.execute("TRUNCATE business_record")
        testbed.simulators.reset()
        testbed.answers.clear()


@contextmanager
def _disarmed(testbed: ChaosTestbed, bug: Bug) -> Iterator[None]:
    """The state store without what would refuse the bug."""
    with psycopg.connect(testbed.owner, autocommit=True) as owner:
        for statement in bug.disarms[:1]:
            owner.execute(statement)
        yield
        for statement in bug.disarms[1:]:
            owner.execute("TRUNCATE task, step, event, compensation")  # what is there may not fit any more
            owner.execute(statement)


async def run_chaos(bug: Bug | None, seed: int) -> list[str]:
    """What a small run of the chaos tier reports; it is too small for its guards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="planted-")))
        if bug:
            stack.callback(put_in(bug.patches if bug.by_submitter else ()))  # replays are by the code as it is
            stack.callback(_given(bug))
        report = await chaos_run.Run(replace(_SMALL, seed=seed), lambda _: None).carry_out(folder)
    return [f"{v.task_id}: {v.invariant}: {v.text}" for v in report.verdict.violations]


def _given(bug: Bug) -> Callable[[], None]:
    """Every process of the testbed that is made meanwhile is asked to have the bug."""

    def make(real: Any) -> Any:
        async def _open(self: ChaosTestbed, stack: AsyncExitStack) -> None:
            self._variables = {**self._variables, "PLANT": bug.name}
            await real(self, stack)

        return _open

    return put_in([Behaviour(ChaosTestbed, "_open", make)])


async def run(names: Sequence[str], seed: int) -> None:
    """Print what each of these shows."""
    bugs = [None if name == NOTHING else named(name) for name in names]
    async with AsyncExitStack() as stack:
        bench: Bench | None = None
        for bug in bugs:
            began = monotonic()
            found: list[str] = []
            chosen = [bug] if bug else [b for b in bugs if b]
            if cases := list(dict.fromkeys(name for b in chosen if b.tier != CHAOS for name in b.tier)):
                folder = stack.enter_context(TemporaryDirectory(prefix="planted-"))
                if bench is None:
                    bench = await stack.enter_async_context(Bench(Path(folder)))
                found += await bench.run(bug, cases)
            if any(b.tier == CHAOS for b in chosen):
                found += await run_chaos(bug, seed)
            seconds = round(monotonic() - began, 1)
            print(REPORT + json.dumps([bug.name if bug else NOTHING, found, seconds]), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="chaos.planted.tier")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.getLogger("psycopg").setLevel(logging.ERROR)
    asyncio.run(run(given.names, given.seed))


if __name__ == "__main__":
    main()
