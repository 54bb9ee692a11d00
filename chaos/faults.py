"""The faults of a run: each kind hurts one part for a while, heals it, and counts what could be seen of it.

A part is hurt by one fault at a time, so that what is seen has one cause. All draws come from one seed; how they fall
in with what the system does is a matter of the machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from time import monotonic

import httpx
import psycopg
from temporalio.service import RPCError

from chaos.fault_context import FaultContext
from chaos.process_faults import Lines, Processes
from chaos.processes import Worker
from chaos.proxy import Cut
from chaos.service_faults import Runs, Services
from chaos.testbed import ChaosTestbed
from domain.faults import Unreachable
from testing.clocks import clock_off_by

_ENCORES = 10
_TRIES = 5


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        act: Does it, once, and says how often something of it was seen.
        per_min: How many a minute of those that need their part for long. share: Of all the others, of the rest.
    """

    name: str
    act: Callable[[], Awaitable[int]]
    per_min: float = 0.0
    share: int = 0


@dataclass(frozen=True)
class Stroke:
    """One fault: when, what, and what was seen of it. `failed`: it could not be done, because of another one."""

    at_s: float
    kind: str
    effects: int
    failed: str = ""


def needed(least: int) -> int:
    """How often a kind that strikes `least` times at least must be seen."""
    return max(1, least // 2)


class Injector:
    """Hurts a testbed.

    Args:
        sweeper: The worker that is the Supervisor, and nothing else; the `workers` others are the testbed's first ones.

    Attributes:
        strokes: What was done. ends: How often a worker ended by itself, by exit code: a part was away when it started.
    """

    def __init__(self, testbed: ChaosTestbed, workers: int, sweeper: Worker, random: Random) -> None:
        self._testbed, self._random = testbed, random
        self._workers = [*(testbed.worker(n) for n in range(workers)), sweeper]
        self._context = FaultContext(testbed, random)
        self._processes = Processes(self._context, self._workers[:-1], sweeper)
        self._lines, self._services, self._runs = Lines(self._context), Services(self._context), Runs(self._context)
        self.strokes: list[Stroke] = []
        self.ends: Counter[str] = Counter()
        self._began = monotonic()

    @property
    def holds(self) -> set[str]:
        """Attempts whose worker was killed or paused while it held them."""
        return self._processes.holds

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Every kind there is."""
        processes, lines, services, runs = self._processes, self._lines, self._services, self._runs
        clock = Kind("worker's clock off by hours", processes.shift_clock, per_min=0.4)
        return (
            *([clock] if clock_off_by("0") else []),  # there may be no library that shifts one
            Kind("worker killed", processes.kill_worker, per_min=1.5),
            Kind("worker paused past its deadlines", processes.pause_worker, per_min=0.8),
            Kind("worker told to stop", processes.stop_worker, per_min=0.6),
            Kind("worker told to stop in a call", processes.stop_worker_in_a_call, per_min=0.4),
            Kind("Supervisor killed", processes.kill_sweeper, per_min=0.6),
            Kind("PostgreSQL killed", lambda: processes.kill(self._testbed.postgres), per_min=0.5),
            Kind("PostgreSQL read-only", processes.take_no_writes, per_min=0.4),
            *(
                Kind(f"{server.part.name.capitalize()} killed", partial(processes.kill, server), per_min=0.4)
                for server in self._testbed.temporal
            ),
            Kind("services killed", lambda: processes.kill(self._testbed.services), per_min=0.4),
            Kind("service dies after its effect", services.crash, per_min=0.4),
            Kind("Schedule deleted", runs.delete_schedule, per_min=0.3),
            Kind("line slow", lines.delay, per_min=1.0),
            Kind("line half open", lines.half_open, per_min=0.6),
            Kind("line refuses", lines.refuse, per_min=0.6),
            Kind("line cut after some bytes", lines.cut_after, per_min=1.0),
            Kind("line reset", lines.reset, share=4),
            Kind("COMMIT cut", lambda: lines.cut_commit(Cut.BEFORE_COMMIT), share=8),
            Kind("COMMIT acknowledgement lost", lambda: lines.cut_commit(Cut.AFTER_COMMIT), share=10),
            Kind("HTTP request doubled", lines.duplicate, share=5),
            Kind("HTTP request held back", lines.hold, share=5),
            Kind("service out", lambda: services.rule("outage"), share=4),
            Kind("service slow", services.slow, share=4),
            Kind("service fails before its effect", lambda: services.error(after_effect=False), share=4),
            Kind("service fails after its effect", lambda: services.error(after_effect=True), share=6),
            Kind("reply lost", lambda: services.rule("lost_reply"), share=6),
            Kind("call held up past its undo", services.stall, per_min=1.0),
            Kind("run terminated", runs.terminate, share=5),
            Kind("run cancelled", runs.cancel, share=3),
            Kind("run reset", runs.reset, share=4),
        )

    async def run(self, total: int, seconds: float, least: int) -> None:
        """Strike so often in so much time, each kind `least` times at least; ends when all have healed.

        What was not done, or not seen often enough, is done again then: on a busy machine a fault may find that its
        part is down already, or no traffic to hurt.
        """
        deck = self._deck(total, seconds / 60, least)
        times = sorted(self._random.uniform(0, seconds) for _ in deck)
        self._began = monotonic()
        async with self._kept():
            async with asyncio.TaskGroup() as group:
                for at_s, kind in zip(times, deck, strict=True):
                    await asyncio.sleep(max(0.0, at_s - (monotonic() - self._began)))
                    group.create_task(self._strike(kind))
            await self._heal()
            for _ in range(_ENCORES if least else 0):
                lacking = [k for k in self.kinds if self.kinds_seen()[k.name][1] < needed(least)]
                more = self._light(total - sum(not s.failed for s in self.strokes) - len(lacking))
                await asyncio.gather(*(self._strike(k) for k in (*lacking, *more)))
        await self._heal()

    def _deck(self, total: int, minutes: float, least: int) -> list[Kind]:
        """Which faults there will be, in random order."""
        kinds = self.kinds
        deck = [k for k in kinds for _ in range(max(least, round(k.per_min * minutes) if k.per_min else least))]
        deck += self._light(total - len(deck))
        self._random.shuffle(deck)
        return deck

    def _light(self, count: int) -> list[Kind]:
        """So many of those that take no time, drawn by their shares."""
        light = [k for k in self.kinds if k.share]
        return self._random.choices(light, [k.share for k in light], k=max(0, count))

    async def _strike(self, kind: Kind) -> None:
        """One fault. What can't be done because another part is down just now is tried again, and noted in the end."""
        at_s, effects, failed = monotonic() - self._began, 0, ""
        for _ in range(_TRIES):
            try:
                effects, failed = await kind.act(), ""
                break
            except (psycopg.Error, RPCError, httpx.HTTPError, TimeoutError, Unreachable) as error:
                failed = f"{type(error).__name__}: {error}"[:200]
                await asyncio.sleep(1)  # between two tries
        self.strokes.append(Stroke(at_s, kind.name, effects, failed))

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        """Start workers that have ended by themselves, as whatever runs them in production does."""

        async def keep() -> None:
            while True:
                await asyncio.sleep(0.5)
                for worker in self._workers:
                    if not self._context.locks[worker].locked() and not worker.is_alive:
                        self.ends[str(await worker.child.ended())] += 1
                        await self._processes.start(worker)

        keeping = asyncio.create_task(keep())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _heal(self) -> None:
        """Leave nothing hurt."""
        testbed = self._testbed
        for server in testbed.servers:
            if not server.part.is_alive():
                await server.start()
        for proxy in testbed.proxies.values():
            proxy.heal()
        await asyncio.to_thread(testbed.simulators.heal)
        for worker in self._workers:
            if not worker.is_alive:
                await self._processes.start(worker)

    def kinds_seen(self) -> dict[str, tuple[int, int]]:
        """By kind, how often it was done and how often it was seen."""
        done = Counter(s.kind for s in self.strokes if not s.failed)
        seen = Counter(s.kind for s in self.strokes if s.effects)
        return {k.name: (done[k.name], seen[k.name]) for k in self.kinds}
