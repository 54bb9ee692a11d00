"""A runner of the crash matrix: one testbed with one worker, on which cases run one after the other.

Whoever dies at a point is followed by a fresh process. What has waited for a dead worker's deadline waits no more:
its deadlines are made to pass at once, and back-offs too; those of the living are left alone. A sweep by hand, as
`starter.py supervise` makes it, finds it beside the Schedule, except in cases about the Supervisor itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg

from chaos.fork_server import ForkServer
from chaos.testbed import ChaosTestbed
from runtime.wiring import sweep_settings
from store.database import Database
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities
from supervisor.sweep import sweep_once

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

    `stand_ins`: actions of services that are played as well; `variables`: further ones of its processes.

    Attributes:
        passed: Every point that any of its processes has passed.
    """

    def __init__(
        self,
        folder: Path,
        fork_server: ForkServer,
        *,
        proxied: bool = False,
        stand_ins: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.kill_file, self._kill_log, self._passed = (folder / name for name in ("kill", "killed", "passed"))
        ours = {
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
        self.testbed = ChaosTestbed(
            folder,
            proxied=proxied,
            fork_server=fork_server,
            stand_ins=stand_ins,
            variables={**ours, **variables},
            **settings,
        )
        self.dead: list[str] = []
        self._read = 0

    async def __aenter__(self) -> CaseRunner:
        await self.testbed.__aenter__()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self.testbed)
            # Not a connection that blocks: it would wait for locks that this very event loop has yet to give back.
            owner = await psycopg.AsyncConnection.connect(self.testbed.owner, autocommit=True)
            self._owner = await stack.enter_async_context(owner)
            await self._owner.execute("SET session_replication_role = replica")
            dsn = self.testbed.direct.supervisor_database_url.get_secret_value()
            database = await stack.enter_async_context(Database(dsn, name="state store", size=2))
            self._supervisor = SupervisorActivities(Supervision(database), self.testbed.client)
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
        worker = self.testbed.worker(0)
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
        dead = self.dead[:-1] if self.testbed.worker(0).is_alive else self.dead
        await self._owner.execute(_HURRY, {"task_id": task_id, "dead": dead})
        if sweep and await (await self._owner.execute(_OVERDUE, (task_id,))).fetchone():
            await sweep_once(self._supervisor, sweep_settings(self.testbed.direct))
