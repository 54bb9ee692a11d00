"""Faults of processes and of the lines between them. Each says how often something of it was seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import psycopg

from chaos.fault_context import PATIENCE_S, FaultContext
from chaos.processes import Part, Server, Worker
from chaos.proxy import Cut, Faults, Way
from testing.clocks import clock_off_by

_CALLED = ("stock", "payments", "shipping")

_LOST_WITHIN_S = 16.0
"""Longer than the longest deadline of a step but one that answers later, and the sweep after it."""


class Processes:
    """Kills, pauses and stops.

    Args:
        sweeper: The worker that is the Supervisor and nothing else.

    Attributes:
        holds: Attempts whose worker was killed or paused while it held them.
    """

    def __init__(self, context: FaultContext, workers: Sequence[Worker], sweeper: Worker) -> None:
        self._context, self._workers, self._sweeper = context, workers, sweeper
        self.holds: set[str] = set()

    async def kill_worker(self) -> int:
        """SIGKILL. Seen: the tasks that it held, and that the Supervisor has taken over."""
        async with self._a_worker() as worker:
            held = await self._in_hand(worker)
            await worker.kill()
            self.holds |= held
            await asyncio.sleep(self._context.between(0, 2))
            await self.start(worker)
        return len(await self._taken_over(held))

    async def pause_worker(self) -> int:
        """SIGSTOP until others have taken its tasks over, then SIGCONT. Seen: those tasks."""
        async with self._a_worker() as worker:
            held = await self._in_hand(worker)
            worker.pause()
            try:
                lost = await self._taken_over(held)
            finally:
                worker.resume()
        self.holds |= lost
        return len(lost)

    async def stop_worker(self) -> int:
        """SIGTERM, as a deployment does it. Seen: it ended in order."""
        async with self._a_worker() as worker:
            try:
                code = await worker.terminate()
            finally:
                await worker.kill()
                await self.start(worker)
        return int(code == 0)

    async def stop_worker_in_a_call(self) -> int:
        """SIGTERM while every call takes longer than the grace. Seen: the tasks that were given back in one."""
        before = await self._given_back_in_a_call()

        async def seen() -> bool:
            return await self._given_back_in_a_call() > before

        async with self._a_worker() as worker:
            for service in _CALLED:
                slow = partial(
                    self._context.testbed.simulators.fault, latency_ms=4_000, for_s=8
                )  # until one is in hand
                await asyncio.to_thread(slow, service, "latency")
            await self._in_hand(worker)
            await asyncio.sleep(self._context.between(0.5, 1.5))
            try:
                await worker.terminate()
            finally:
                await worker.kill()
                await self.start(worker)
        await self._context.until(seen, PATIENCE_S)
        return await self._given_back_in_a_call() - before

    async def _given_back_in_a_call(self) -> int:
        query = "SELECT 1 FROM event WHERE kind = 'released' AND detail ->> 'cause' LIKE %s"
        return len(await self._context.rows(query, "%(during call %"))

    async def shift_clock(self) -> int:
        """A worker is followed by one whose clock is hours off, until it ends. Seen: the tasks that one claimed."""
        async with self._a_worker() as worker:
            await worker.kill()
            await worker.start(ready=False, **clock_off_by(self._context.random.choice(("-2h", "+2h"))) or {})
            return int(bool(await self._in_hand(worker, 2 * PATIENCE_S)))

    @asynccontextmanager
    async def _a_worker(self) -> AsyncIterator[Worker]:
        """A worker that nothing else is done to meanwhile."""
        free = [w for w in self._workers if not self._context.locks[w].locked()] or self._workers
        worker = self._context.random.choice(free)
        async with self._context.locks[worker]:
            yield worker

    async def kill_sweeper(self) -> int:
        async with self._context.locks[self._sweeper]:
            was_alive = self._sweeper.is_alive
            await self._sweeper.kill()
            await asyncio.sleep(self._context.between(0, 5))
            await self.start(self._sweeper)
        return int(was_alive)

    async def kill(self, server: Server[Part]) -> int:
        """SIGKILL, and start it again. Seen: it is another process now."""
        async with self._context.locks[server.part.name]:
            before = server.part.pid
            await server.kill()
            await asyncio.sleep(self._context.between(0, 1.5))
            await server.start()
            return int(server.part.pid not in (None, before))

    async def take_no_writes(self) -> int:
        """Let PostgreSQL be read-only, as when its disk is full, mostly for longer than a write is repeated.

        Seen: a new session is.
        """
        postgres, context = self._context.testbed.postgres.part, self._context
        async with context.locks[postgres.name]:
            await context.rows("ALTER SYSTEM SET default_transaction_read_only = on")
            try:
                await context.rows("SELECT pg_reload_conf()")
                await asyncio.sleep(context.between(4, 8))
                on = await context.rows("SHOW default_transaction_read_only")
            finally:
                await context.rows("ALTER SYSTEM RESET default_transaction_read_only")
                await context.rows("SELECT pg_reload_conf()")
        return int(on[0]["default_transaction_read_only"] == "on")

    async def start(self, worker: Worker) -> None:
        """Start it, but wait for nothing: while another part is away it ends again."""
        await worker.start(ready=False, **({"ROLES": "supervisor"} if worker is self._sweeper else {}))

    async def _in_hand(self, worker: Worker, within_s: float = PATIENCE_S) -> set[str]:
        """The attempts that a worker holds as soon as it holds one; none, if that takes too long."""
        held: set[str] = set()

        async def holds() -> bool:
            nonlocal held
            held = await self._held_by(worker)
            return bool(held)

        await self._context.until(holds, within_s)
        return held

    async def _held_by(self, worker: Worker) -> set[str]:
        """The attempts that a worker holds now."""
        if not worker.is_alive:
            return set()
        name = f"%:{worker.child.pid}:%"
        rows = await self._context.rows(
            "SELECT locked_by FROM task WHERE locked_by IS NOT NULL AND worker LIKE %s", name
        )
        return {r["locked_by"] for r in rows}

    async def _taken_over(self, held: set[str]) -> set[str]:
        """The attempts that the Supervisor takes their tasks from; it has a while to find all of these."""
        query = (
            "SELECT detail ->> 'held_by' AS attempt FROM event"
            " WHERE task_id = ANY(%s) AND kind = 'expired' AND detail ->> 'held_by' = ANY(%s)"
        )
        taken: set[str] = set()

        async def all_are() -> bool:
            nonlocal taken
            with suppress(psycopg.OperationalError):
                rows = await self._context.rows(query, [attempt.split("/")[1] for attempt in held], list(held))
                taken = {r["attempt"] for r in rows}
            return taken == held

        await self._context.until(all_are, _LOST_WITHIN_S, look_s=0.5)
        return taken


class Lines:
    """What proxies do to connections and requests."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context

    async def delay(self) -> int:
        return await self._line(
            self._context.between(2, 5), "delayed", delay_s=self._context.between(0.02, 0.3), jitter_s=0.2
        )

    async def half_open(self) -> int:
        return await self._line(self._context.between(2, 8), "swallowed", blackhole=True)

    async def refuse(self) -> int:
        return await self._line(self._context.between(1, 4), "refused", then_reset=True, refuse=True)

    async def cut_after(self) -> int:
        cut = {self._context.random.choice(list(Way)): self._context.random.randint(100, 20_000)}
        return await self._line(self._context.between(1, 3), "cut", cut_after=cut)

    async def reset(self) -> int:
        return await self._line(0.0, "cut", then_reset=True)

    async def _line(self, seconds: float, effect: str, *, then_reset: bool = False, **faults: Any) -> int:
        """Let one line be faulty for a while."""
        name = self._context.random.choices(("postgres", "temporal", "services", "callbacks"), (5, 4, 2, 1))[0]
        return await self._through(name, effect, seconds, Faults(**faults), then_reset=then_reset)

    async def duplicate(self) -> int:
        faults = Faults(duplicate=0.5, duplicate_after_s=self._context.between(0, 3))
        return await self._through("services", "duplicated", self._context.between(0.5, 2), faults, patient=True)

    async def hold(self) -> int:
        faults = Faults(hold=0.5, hold_s=self._context.between(0.3, 6))
        return await self._through("services", "held", self._context.between(0.5, 2), faults, patient=True)

    async def _through(
        self, name: str, effect: str, seconds: float, faults: Faults, *, then_reset: bool = False, patient: bool = False
    ) -> int:
        """Let a proxy have these faults for a while, or until they strike. Seen: what it counted meanwhile."""
        proxy = self._context.testbed.proxies[name]

        async def seen() -> bool:
            return proxy.effects[effect] > before

        async with self._context.locks[name]:
            before = proxy.effects[effect]
            proxy.faults = faults
            if then_reset:
                proxy.reset()
            await asyncio.sleep(seconds)
            if patient:
                await self._context.until(seen, PATIENCE_S)
            proxy.heal()
            return proxy.effects[effect] - before

    async def cut_commit(self, cut: Cut) -> int:
        """Cut the connections of the next that commit."""
        proxy = self._context.testbed.proxies["postgres"]

        async def seen() -> bool:
            return proxy.effects[cut] > before

        async with self._context.locks["postgres"]:
            before = proxy.effects[cut]
            proxy.arm(cut, self._context.random.randint(1, 3))
            await self._context.until(seen, PATIENCE_S)
            proxy.heal()
            return proxy.effects[cut] - before
