"""A run with faults: tasks arrive while parts are killed, paused, cut off and lied to; then all heals, and is audited.

    python -m chaos.run --tasks 2000 --minutes 10 --faults 400 --seed 7 -o chaos.json

Exit code 0: everything held. 1: something did not. 2: too little happened for the run to say anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic
from typing import Any

import psycopg
from psycopg.rows import dict_row

from audit.checks import Violation
from chaos.faults import Injector, Stroke, needed
from chaos.figures import Guards
from chaos.soak_plot import plot
from chaos.temporal_cluster import PROGRAMS
from chaos.testbed import ChaosTestbed
from chaos.verdict import Verdict, evaluate, machine
from chaos.workload import Traffic, make_plans, stores_through_proxies
from domain.messages import Json
from domain.states import SETTLED
from runtime.roles import Role

_SETTLES_IN_S = 240.0
_SAMPLE_S = 10.0
_COUNTS = """
SELECT
    count(*) FILTER (WHERE state = ANY(%(settled)s)) AS settled,
    count(*) FILTER (WHERE locked_by IS NULL AND state <> ALL(%(settled)s)) AS backlog,
    count(locked_by) AS held,
    coalesce(extract(epoch FROM max(clock_timestamp() - complete_by)), 0)::float8 AS overdue_s
FROM task
"""


@dataclass(frozen=True)
class Options:
    """What to do.

    Attributes:
        seconds: How long faults strike. least: So many of each kind. slots: Of each worker.
        found_in_s: By then a held task that is overdue is found, whatever that needs having been down meanwhile.
        patience_s: How long whoever could not be served meanwhile may need afterwards.
        replayed: So many histories, at most. thorough: It is large enough for rare things to happen as well.
        cluster: Temporal is a cluster of processes on PostgreSQL.
    """

    tasks: int
    seconds: float
    faults: int
    seed: int
    workers: int = 3
    slots: int = 8
    least: int = 4
    replayed: int = 5_000
    found_in_s: float = 30
    patience_s: float = 300
    max_in_flight: int = 30
    max_pending: int = 15
    thorough: bool = True
    cluster: bool = False


SHORT = Options(
    tasks=100,
    seconds=40,
    faults=45,
    seed=0,
    least=1,
    found_in_s=120,
    max_in_flight=12,
    max_pending=6,
    thorough=False,
)
CHAOS = Options(tasks=2_000, seconds=600, faults=400, seed=0)
SOAK = Options(
    tasks=25_000,
    seconds=2_100,
    faults=3_000,
    seed=0,
    slots=24,
    least=10,
    replayed=2_000,
    patience_s=1_800,
    max_in_flight=200,
    max_pending=120,
)


@dataclass(frozen=True)
class Report:
    """What came of a run, and how it went: `series` every ten seconds, `strokes` by the moment."""

    options: Options
    started_at: str
    verdict: Verdict
    series: list[Json]
    strokes: list[Stroke]

    def as_json(self) -> Json:
        """All of it, with what it ran on."""
        return {
            "code": int(self.verdict.code),
            "machine": machine(),
            "started_at": self.started_at,
            "options": asdict(self.options),
            **self.verdict.as_json(),
            "series": self.series,
        }


class Run:
    """One run, in a testbed of its own."""

    def __init__(self, options: Options, tell: Callable[[str], None]) -> None:
        self._options, self._tell = options, tell
        self._random = Random(options.seed)  # noqa: S311 (repeatable draws, no secrets)
        self._series: list[Json] = []

    async def carry_out(self, folder: Path) -> Report:
        """Let tasks arrive and faults strike, heal, wait until all is settled, audit."""
        options, started_at = self._options, datetime.now(UTC).isoformat(timespec="seconds")
        roles = (Role.SCHEDULER, Role.AGENTS, Role.CALLBACKS)
        settings: dict[str, Any] = {
            "max_in_flight": options.max_in_flight,
            "max_pending": options.max_pending,
            "task_slots": options.slots,
            "claim_within": timedelta(seconds=10),
        }
        async with ChaosTestbed(
            folder, workers=options.workers + 1, roles=roles, seed=options.seed, cluster=options.cluster, **settings
        ) as self._testbed:
            sweeper = self._testbed.worker(options.workers)
            await sweeper.start(ROLES=Role.SUPERVISOR)
            await asyncio.gather(*(self._testbed.worker(n).start() for n in range(options.workers)))
            async with stores_through_proxies(self._testbed) as stores:
                self._traffic = Traffic(self._testbed, stores, make_plans(self._stream()), self._stream())
                self._injector = Injector(self._testbed, options.workers, sweeper, self._stream())
                late: list[Violation] = []
                async with self._sampled():
                    began = monotonic()
                    try:
                        settled_after_s = await self._go()
                    except TimeoutError as error:
                        settled_after_s = monotonic() - began
                        late.append(Violation("all_is_settled_in_time", "", str(error) or "tasks are refused still"))
            late += self._found_late()
            guards = Guards(options.tasks, options.faults, needed(options.least), thorough=options.thorough)
            verdict = await evaluate(self._traffic, self._injector, guards, self._stream(), options.replayed)
        verdict.violations.extend(late)
        verdict.figures.settled_after_s = round(settled_after_s, 1)
        return Report(options, started_at, verdict, self._series, self._injector.strokes)

    async def _go(self) -> float:
        """Tasks and faults, then neither; how long it took from the last fault's healing until all was settled."""
        options = self._options
        at_once = 2 * (options.max_in_flight + options.max_pending)
        per_s = max(1, options.tasks - at_once) / (0.95 * options.seconds)
        faults = asyncio.create_task(self._injector.run(options.faults, options.seconds, options.least))
        traffic = asyncio.create_task(self._traffic.run(options.tasks, faults, per_s, at_once))
        await faults
        healed_at = monotonic()
        self._tell("every fault has healed")
        async with asyncio.timeout(options.patience_s):
            await traffic
        await self._testbed.settle(_SETTLES_IN_S)
        return monotonic() - healed_at

    def _found_late(self) -> Iterator[Violation]:
        """What was overdue for longer than the Supervisor may need to find it."""
        for sample in self._series:
            if sample["overdue_s"] > self._options.found_in_s:
                text = f"{sample['at_s']:.0f} s after the start one was overdue by {sample['overdue_s']:.1f} s"
                yield Violation("expired_is_found_soon", "", text)

    def _stream(self) -> Random:
        """Draws of its own for each part: how far one gets changes nothing for the others."""
        return Random(self._random.random())  # noqa: S311 (likewise)

    @asynccontextmanager
    async def _sampled(self) -> AsyncIterator[None]:
        """Look every ten seconds, and once at the end."""
        began = monotonic()

        async def look() -> None:
            while True:
                await asyncio.sleep(_SAMPLE_S)
                await self._sample(monotonic() - began)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
        await self._sample(monotonic() - began)

    async def _sample(self, at_s: float) -> None:
        with suppress(psycopg.OperationalError):
            async with await psycopg.AsyncConnection.connect(
                self._testbed.owner, row_factory=dict_row, connect_timeout=2
            ) as connection:
                cursor = await connection.execute(_COUNTS, {"settled": list(SETTLED)})
                counts = await cursor.fetchone() or {}
            strokes = len(self._injector.strokes)
            self._series.append({"at_s": round(at_s, 1), "taken": self._traffic.taken, "faults": strokes, **counts})
            self._tell(
                f"{at_s:5.0f} s  taken {self._traffic.taken}, settled {counts['settled']}, held {counts['held']},"
                f" waiting {counts['backlog']}, oldest overdue {max(0, counts['overdue_s']):.1f} s, faults {strokes}"
            )


def main() -> int:
    """The command."""
    arguments = _arguments()
    given = {"tasks": arguments.tasks, "faults": arguments.faults}
    given["seconds"] = arguments.minutes * 60 if arguments.minutes else None
    base = SHORT if arguments.short else SOAK if arguments.soak else CHAOS
    seed = SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    options = replace(base, seed=seed, cluster=arguments.cluster, **{k: v for k, v in given.items() if v is not None})
    print(f"seed {seed}: {options.tasks} tasks and {options.faults} faults in {options.seconds:g} s", flush=True)
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # that connections die is what this is about
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        report = asyncio.run(Run(options, lambda line: print(line, flush=True)).carry_out(folder))
        if arguments.folder:
            (folder / "strokes.json").write_text(_document({"strokes": [asdict(s) for s in report.strokes]}))
    print("\n".join(report.verdict.lines()), flush=True)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(_document(report.as_json()))
        arguments.output.with_suffix(".svg").write_text(plot(report.series, f"{options.tasks} tasks, seed {seed}"))
    return int(report.verdict.code)


def _document(report: Json) -> str:
    """JSON that can be read, and compared with an older one: a field a line, of a list an entry a line."""
    fields = []
    for name, value in report.items():
        entries = ",\n  ".join(json.dumps(v) for v in value) if isinstance(value, list) else None
        fields.append(f' "{name}": ' + (f"[\n  {entries}\n ]" if entries else json.dumps(value)))
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true", help="a minute and a half, with every kind of fault in it")
    size.add_argument("--soak", action="store_true", help="25,000 tasks and 3,000 faults")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--minutes", type=float, help="how long faults strike")
    parser.add_argument("--faults", type=int)
    parser.add_argument("--seed", type=int, help="of all draws; any, if it is not given")
    parser.add_argument(
        "--cluster", action="store_true", help=f"Temporal as a cluster on PostgreSQL: needs {' and '.join(PROGRAMS)}"
    )
    parser.add_argument("--folder", type=Path, help="keeps data and logs, to look at afterwards")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON; a picture goes beside it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
