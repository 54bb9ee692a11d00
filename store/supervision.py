"""The state store as the Supervisor sees it, under its own database role: it finds, and it asks (D3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict

from domain.messages import Json
from domain.states import StepState, TaskState
from store.database import Database, query
from store.state_store import NOTIFY


class ExpiredStep(BaseModel):
    """A step of an expired task. `current`: begun by the attempt that expired."""

    model_config = ConfigDict(frozen=True)

    name: str
    state: StepState
    failure_count: int
    budget_left: int
    undo_budget_left: int
    gave_up: bool
    current: bool
    overdue: bool | None


class ExpiredTask(BaseModel):
    """A held task whose complete_by has passed, with the policies it runs under (None: unknown version).

    `expiries`: how often it has expired before, since it was submitted or a person last asked something of it.
    """

    model_config = ConfigDict(frozen=True)

    task_id: str
    state: TaskState
    locked_by: str
    complete_by: datetime
    past_pivot: bool
    expiries: int
    overdue_s: float
    policies: Json | None
    steps: list[ExpiredStep]


class Recovery(BaseModel):
    """A decision about one expired task, guarded by what was read."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    locked_by: str
    complete_by: datetime
    target: TaskState
    delay_s: float
    failed_steps: list[str]
    cause: str


class Supervision:
    """Reads and requests of the Supervisor."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_sweep(self) -> tuple[int, timedelta | None]:
        """Record that a sweep starts. Returns its id, and how long ago the last one finished (None: never)."""
        rows = await self._database.rows(query("begin_sweep"))
        age = rows[0]["age_s"]
        return int(rows[0]["id"]), None if age is None else timedelta(seconds=age)

    async def finish_sweep(self, sweep: int, *, found: int, changed: int, pages: int, oldest_overdue_s: float) -> None:
        """Record what a sweep did (D4)."""
        await self._database.rows(
            "UPDATE sweep SET finished_at = clock_timestamp(), found = %(found)s, changed = %(changed)s,"
            " pages = %(pages)s, oldest_overdue_s = %(oldest)s WHERE id = %(sweep)s RETURNING id",
            {"sweep": sweep, "found": found, "changed": changed, "pages": pages, "oldest": oldest_overdue_s},
        )

    async def expired(self, *, window: timedelta, page: int, after: tuple[datetime | None, str]) -> list[ExpiredTask]:
        """The next page of expired rows behind `after` (complete_by, task_id), oldest first (D2)."""
        rows = await self._database.rows(
            query("expired"),
            {
                "window_s": window.total_seconds(),
                "page": page,
                "after_at": after[0] or "-infinity",
                "after_id": after[1],
            },
        )
        return [ExpiredTask.model_validate(r) for r in rows]

    async def recover(self, decisions: Sequence[Recovery], actor: str) -> list[tuple[str, str]]:
        """Carry out decisions, each only if its row is as it was read. Returns (task_id, evicted locked_by)."""
        params = {"decisions": json.dumps([d.model_dump(mode="json") for d in decisions]), "actor": actor}
        _, rows = await self._database.transaction((query("recover"), params), (NOTIFY, {}))
        return [(r["task_id"], r["locked_by"]) for r in rows[0]]

    async def last_sweep_age(self) -> timedelta | None:
        """How long ago a sweep last finished; None if none ever did."""
        rows = await self._database.rows(
            "SELECT extract(epoch FROM clock_timestamp() - max(finished_at))::float8 AS age_s FROM sweep"
        )
        return None if rows[0]["age_s"] is None else timedelta(seconds=rows[0]["age_s"])

    async def alert_missed_sweep(self, message: str) -> bool:
        """Alert on a missed sweep, once an outage; whether this call raised it (D1)."""
        return bool(await self._database.rows(query("alert_missed_sweep"), {"message": message}))
