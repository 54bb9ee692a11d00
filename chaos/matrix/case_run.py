"""A runner of the crash matrix: one world with one worker, on which cases run one after the other.

Whoever dies at a point is followed by a fresh process. What has waited for a dead worker's deadline waits no more:
its deadlines are made to pass at once, and back-offs too; those of the living are left alone. A sweep by hand, as
`starter.py supervise` makes it, finds it beside the Schedule, except in cases about the Supervisor itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from temporalio.service import RPCError

from chaos.fork_server import ForkServer
from chaos.processes import Worker
from chaos.world import World
from definitions import registry
from domain.definition import Registry
from domain.ids import undo_request_id
from domain.messages import Json
from domain.states import TaskState
from runtime.wiring import sweep_settings
from store.database import Database
from store.reads import TaskPage
from store.submission import Accepted, DeadLettered, Submission
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities
from supervisor.schedule import SCHEDULE_ID
from supervisor.sweep import sweep_once
from testing.waiting import eventually

_HURRY = """
WITH dead AS (
    UPDATE task SET
        complete_by = CASE WHEN locked_by IS NOT NULL THEN clock_timestamp() END,
        not_before = CASE WHEN locked_by IS NULL THEN clock_timestamp() ELSE not_before END
    WHERE task_id = %(task_id)s AND CASE
        WHEN locked_by IS NULL THEN not_before > clock_timestamp()
        ELSE complete_by > clock_timestamp() AND split_part(worker, ':', 2) = ANY(%(dead)s)
    END
    RETURNING task_id, locked_by
)
UPDATE step SET complete_by = clock_timestamp() FROM dead
WHERE step.task_id = dead.task_id AND dead.locked_by IS NOT NULL AND step.state IN ('Running', 'Undoing')
"""

SLOTS, SWEEP_PAGES = 3, 2
"""Of the worker of a runner, and of each of its sweeps: pages of one row. Cases with several tasks go beyond both."""

OUTAGE = timedelta(seconds=4)
"""Supervision of a runner was out if no sweep has finished for so long."""

_PLANT = """
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT task_id, last_event + 1, 'noted', state, state, epoch, 'nobody', '{}' FROM task WHERE task_id = %s
"""

_OVERDUE = "SELECT 1 FROM task WHERE task_id = %s AND locked_by IS NOT NULL AND complete_by <= clock_timestamp()"


class CaseRunner:
    """Opened with `async with`. `proxied`: its worker goes through proxies, which slow it down.

    Attributes:
        passed: Every point that any of its processes has passed.
    """

    def __init__(self, folder: Path, fork_server: ForkServer, *, proxied: bool = False) -> None:
        self.kill_file, self._kill_log, self._passed = (folder / name for name in ("kill", "killed", "passed"))
        variables = {
            "KILL_FILE": str(self.kill_file),
            "KILL_LOG": str(self._kill_log),
            "PASSED_LOG": str(self._passed),
        }
        # The dead are hurried, so nothing need be short for them; a breaker opens by one attempt, and asks again soon.
        settings: dict[str, Any] = {
            "claim_within": timedelta(seconds=10),
            "breaker_failures": 1,
            "breaker_pause": timedelta(milliseconds=500),
            "task_slots": SLOTS,
            "sweep_page": 1,
            "sweep_pages": SWEEP_PAGES,
        }
        self.world = World(folder, proxied=proxied, fork_server=fork_server, variables=variables, **settings)
        self.dead: list[str] = []
        self._read = 0

    async def __aenter__(self) -> CaseRunner:
        await self.world.__aenter__()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.world)
            # Not a connection that blocks: it would wait for locks that this very event loop has yet to give back.
            owner = await psycopg.AsyncConnection.connect(self.world.owner, autocommit=True)
            self._owner = await stack.enter_async_context(owner)
            await self._owner.execute("SET session_replication_role = replica")
            dsn = self.world.direct.supervisor_database_url.get_secret_value()
            database = await stack.enter_async_context(Database(dsn, name="state store", size=2))
            self._supervisor = SupervisorActivities(Supervision(database), self.world.client)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    @property
    def passed(self) -> set[str]:
        """Every point that any process of this runner has passed."""
        return set(self._passed.read_text().split()) if self._passed.exists() else set()

    def killed(self) -> list[str]:
        """The points at which somebody has died since this was asked last."""
        lines = self._kill_log.read_text().splitlines() if self._kill_log.exists() else []
        new, self._read = lines[self._read :], len(lines)
        return [line.split()[0] for line in new]

    async def follow(self) -> None:
        """Start a worker where the last one has died."""
        worker = self.world.worker(0)
        if not worker.is_alive:
            await worker.start(ready=False)
            self.dead.append(str(worker.child.pid))

    async def expire(self, task_id: str) -> None:
        """Let a deadline pass at once, whoever holds the task."""
        await self._owner.execute("UPDATE task SET complete_by = clock_timestamp() WHERE task_id = %s", (task_id,))
        await self._owner.execute("UPDATE step SET complete_by = clock_timestamp() WHERE task_id = %s", (task_id,))

    async def ask(self, query: LiteralString, *params: object) -> list[tuple[Any, ...]]:
        """Ask the state store, as its owner."""
        return await (await self._owner.execute(query, params)).fetchall()

    @asynccontextmanager
    async def planted_event(self, task_id: str) -> AsyncIterator[None]:
        """A task has an event ahead of its row meanwhile, so that nothing can be written for it."""
        await self._owner.execute(_PLANT, (task_id,))
        try:
            yield
        finally:
            await self._owner.execute("DELETE FROM event WHERE task_id = %s AND actor = 'nobody'", (task_id,))

    async def hurry(self, task_id: str, *, sweep: bool) -> None:
        """Let what the dead hold be over, and what nobody holds be due; `sweep` at once, beside the Schedule."""
        dead = self.dead[:-1] if self.world.worker(0).is_alive else self.dead
        await self._owner.execute(_HURRY, {"task_id": task_id, "dead": dead})
        if sweep and await (await self._owner.execute(_OVERDUE, (task_id,))).fetchone():
            await sweep_once(self._supervisor, sweep_settings(self.world.direct))


class Run:
    """One case on a runner: a task, and the points at which somebody dies, one after the other."""

    def __init__(self, runner: CaseRunner, task_id: str, kills: tuple[str, ...], *, armed: bool, sweep: bool) -> None:
        self.runner, self.world, self.task_id = runner, runner.world, task_id
        self._left, self.fired = list(kills), list[str]()
        self.definition, self._over, self._sweep = "order", False, sweep
        self._beside = 0
        if armed:
            self.arm()

    @property
    def worker(self) -> Worker:
        """The worker, or its successor."""
        return self.world.worker(0)

    async def go(self, play: Callable[[Run], Awaitable[None]]) -> None:
        """Play, and let a fresh process follow each that dies, until both are over."""
        following = asyncio.create_task(self._follow())
        playing = asyncio.create_task(play(self))
        try:
            async with asyncio.timeout(120):
                await asyncio.wait([following, playing], return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                await playing
                with suppress(TimeoutError):
                    await self.all_fired(within_s=3)
        finally:
            self._over = True
            playing.cancel()
            await asyncio.gather(following, playing, return_exceptions=True)
            self.runner.kill_file.write_text("")
            self.heal()
            await self.runner.follow()

    async def _follow(self) -> None:
        while not self._over:
            for point in self.runner.killed():
                self.fired.append(point)
                self.arm()
            await self.runner.follow()
            await self.runner.hurry(self.task_id, sweep=self._sweep)
            await asyncio.sleep(0.05)

    # --- words of the scenarios -------------------------------------------------------------------------------

    def arm(self) -> None:
        """From now on, the next point kills."""
        following = [p for kill in self._left[len(self.fired) :][:1] for p in kill.split("|")]
        specs = [p.removeprefix("*") if p.startswith("*") else f"{p}@{self.task_id}" for p in following]
        self.runner.kill_file.write_text(" ".join(specs))

    async def all_fired(self, within_s: float = 60) -> None:
        """Wait until every point has killed."""

        async def fired() -> bool:
            return len(self.fired) == len(self._left)

        await eventually(fired, within_s=within_s)

    async def submit(self, record: Mapping[str, Any], definition: str = "order", known: Registry | None = None) -> None:
        """Submit, as somebody who stays alive."""
        self.definition = definition
        assert (await self.world.submit(dict(record), self.task_id, definition, known)).verdict == "accepted"

    async def beside(self, record: Mapping[str, Any], definition: str = "order") -> str:
        """Submit another task, which is audited as well; its id."""
        self._beside += 1
        task_id = f"{self.task_id}-{self._beside}"
        assert (await self.world.submit(dict(record), task_id, definition)).verdict == "accepted"
        return task_id

    async def submit_by_process(
        self, record: Json, *, expected: str = "Accepted", again: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Submit in a process of its own; if it dies, again, at once or after `again`."""
        submission = Submission(task_id=self.task_id, definition="order", record=record)
        message = submission.model_dump_json()
        if again is not None:
            await (await self.world.process(SUBMIT=message)).ended()
            await again()
        said = await self.process_until_it_ends(SUBMIT=message)
        assert f"{expected}(task_id='{self.task_id}'" in said, said
        is_new = "new=True" in said.rpartition(f"task_id='{self.task_id}'")[2]
        self.world.note(
            submission,
            Accepted(self.task_id, "order", is_new) if expected == "Accepted" else DeadLettered(self.task_id, ""),
        )

    async def process_until_it_ends(self, **environment: str) -> str:
        """Run a process until one of its kind is not killed; the log of that kind."""
        while True:
            before, child = len(self.fired), await self.world.process(**environment)
            if await child.ended() == 0:
                return child.log_tail()
            await eventually(lambda before=before: self._has_fired(before))

    async def _has_fired(self, before: int) -> bool:
        return len(self.fired) > before

    async def ask_undo(self) -> None:
        """Ask for undo, as an operator does."""
        assert (await self.world.compensate(self.task_id)).verdict in ("accepted", "already")

    async def signal(self) -> None:
        """Ask for undo by a signal, which the worker has to take to the store."""
        await self.world.client.start_workflow(
            "CompensationRequest",
            id=undo_request_id(self.definition, self.task_id),
            task_queue="scheduler",
            start_signal="compensate",
            start_signal_args=["a test asks for it"],
        )

    async def reached(self, state: TaskState) -> None:
        """Wait until the task is in this state."""

        async def there() -> bool:
            return (await self.page()).task.state is state

        await eventually(there, within_s=100)

    async def page(self) -> TaskPage:
        """Everything on record about the task."""
        return await self.world.reads.page(self.task_id)

    async def called(self, service: str, *, undo: bool = False) -> None:
        """Wait until a service has received a call."""

        async def called() -> bool:
            return self.world.simulators.calls(service, self.task_id, undo=undo) > 0

        await eventually(called)

    async def work_as(self, *roles: str) -> None:
        """Let the worker end, and one with these roles follow it."""
        self.world.give_roles(*roles)
        await self.worker.terminate()

    async def cancel_run(self) -> None:
        """Cancel the run that holds the task, in Temporal."""
        if locked_by := (await self.page()).task.locked_by:
            with suppress(RPCError):
                await self.world.client.get_workflow_handle(locked_by).cancel()

    async def forget_schedule(self) -> None:
        """Delete the Supervisor's Schedule."""
        await self.world.client.get_schedule_handle(SCHEDULE_ID).delete()

    async def lose_record(self) -> tuple[Any, ...]:
        """Let the business record of the task be gone; what it was."""
        orders = self.world.postgres.part.dsn("orders")
        async with await psycopg.AsyncConnection.connect(orders) as connection:
            found = await connection.execute(
                "DELETE FROM business_record WHERE task_id = %s RETURNING business_record::text", (self.task_id,)
            )
            record = await found.fetchone()
        assert record is not None
        return record

    async def put_back(self, record: tuple[Any, ...]) -> None:
        """Put a business record back that was lost."""
        orders = self.world.postgres.part.dsn("orders")
        async with await psycopg.AsyncConnection.connect(orders) as connection:
            await connection.execute("INSERT INTO business_record SELECT (%s::business_record).*", record)

    def fault(self, service: str, kind: str, *, match: Mapping[str, Any] | None = None, **rule: Any) -> None:
        """Make a service fail for this task."""
        self.world.simulators.fault(service, kind, match={"task_id": self.task_id, **(match or {})}, **rule)

    def heal(self) -> None:
        """No service fails any more."""
        self.world.simulators.heal()

    def undo_calls(self, step: str) -> int:
        """Calls of one attempt to undo a step."""
        definition = registry().newest(self.definition)
        undo = definition.step(step).undo if definition else None
        return undo.calls if undo else 0
