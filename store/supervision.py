"""The state store as the Supervisor sees it, under its own database role: it finds, and it asks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat

from domain.states import StepState, TaskState
from domain.text import clean
from store.alerts import alert_once
from store.connection import is_of_rows
from store.database import Database, Params
from store.queries import query

_MOST_WATCHED = 1_000
"""Rows of each definition version, and of those being undone, that a watch reads at most."""


class ExpiredStep(BaseModel):
    """A step of an expired task. `current`: begun by the attempt that expired."""

    model_config = ConfigDict(frozen=True)

    name: str
    state: StepState
    failure_count: int
    budget_left: int
    undo_budget_left: int
    reserved: int
    gave_up: bool
    current: bool
    overdue: bool | None


class ExpiredTask(BaseModel):
    """A held task whose complete_by has passed, with the policies it runs under (None: unknown version).

    `expiries`: how often it has expired before, since it last made progress or a person asked something of it.
    `outage`: supervision or the store was out at some time while it was held; such an expiry is none of them.
    """

    model_config = ConfigDict(frozen=True)

    task_id: str
    state: TaskState
    locked_by: str
    complete_by: datetime
    last_event: int
    past_pivot: bool
    expiries: int
    overdue_s: float
    outage: bool
    policies: Any
    steps: list[ExpiredStep]


class Recovery(BaseModel):
    """A decision about one expired task, guarded by what was read."""

    model_config = ConfigDict(frozen=True)

    task_id: str
    locked_by: str
    complete_by: datetime
    last_event: int
    target: TaskState
    delay_s: FiniteFloat
    failed_steps: list[str]
    outage: bool
    cause: str


class StaleRun(BaseModel):
    """An attempt that has lost its task, and may have a run. `given_up`: no other attempt follows."""

    model_config = ConfigDict(frozen=True)

    attempt: str
    given_up: bool = False


class Supervision:
    """Reads and requests of the Supervisor."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_sweep(self, gap: timedelta) -> int:
        """Record that a sweep starts; if none has finished for `gap`, also that supervision was out. Returns its id."""
        rows = await self._database.rows(query("begin_sweep"), {"gap_s": gap.total_seconds()})
        return int(rows[0]["id"])

    async def finish_sweep(self, sweep: int) -> None:
        """Record that a sweep is over; what it changed, each page has recorded itself."""
        await self._database.rows(query("finish_sweep"), {"sweep": sweep})

    async def expired(
        self,
        *,
        window: timedelta,
        page: int,
        after: tuple[datetime | None, str],
        sweep: int | None = None,
        within: timedelta = timedelta(days=1),
    ) -> list[ExpiredTask]:
        """The next page of expired rows behind `after` (complete_by, task_id), oldest first.

        Empty once `sweep` is at work for longer than `within`.
        """
        rows = await self._database.rows(
            query("expired"),
            {
                "window_s": window.total_seconds(),
                "page": page,
                "after_at": after[0] or "-infinity",
                "after_id": after[1],
                "sweep": sweep,
                "within_s": within.total_seconds(),
            },
        )
        return [ExpiredTask.model_validate(r) for r in rows]

    async def recover(
        self,
        decisions: Sequence[Recovery],
        *,
        sweep: int | None = None,
        per_s: float = 20.0,
        ramp: timedelta = timedelta(seconds=10),
    ) -> list[tuple[str, str]]:
        """Carry out decisions, each only if its row is as it was read. Returns (task_id, evicted locked_by).

        If the page is refused, each is carried out by itself; one that is refused is left out, with an alert.

        Args:
            decisions: One page. sweep: where the page is counted.
            per_s: Tasks a second that are let go at most; a second's worth of them at once. ramp: time until it is
                that many again for those behind them.
        """
        params = {"sweep": sweep, "per_s": per_s, "ramp_s": ramp.total_seconds()}
        try:
            return await self._recover(decisions, params)
        except Exception as error:
            if not is_of_rows(error):
                raise
        evicted: list[tuple[str, str]] = []
        for decision in decisions:
            try:
                evicted += await self._recover([decision], params)
            except Exception as error:
                if not is_of_rows(error):
                    raise
                await self.left_out(decision.task_id, str(error))
        return evicted

    async def left_out(self, task_id: str, reason: str) -> None:
        """Alert on a task that can't be recovered, unless that was done within the hour."""
        message = f"it has expired, and is not recovered: {clean(reason)[:500]}"
        await self._database.transaction(alert_once("not_recovered", message, task_id, each_task=True))

    async def stale_runs(self, most: int) -> list[StaleRun]:
        """Attempts that have lost their task, and whose runs are to be looked at: first those that wait longest."""
        rows = await self._database.rows(query("find_stale_runs"), {"most": most})
        return [StaleRun.model_validate(r) for r in rows]

    async def workflow_code_fails(self, attempt: str, fault: str) -> None:
        """Raise an alert, once an hour, that an attempt came to nothing since its workflow code fails or blocks."""
        message = f"the workflow code of {attempt} fails, in its definition or elsewhere: {fault}"
        await self._database.transaction(alert_once("workflow_code_fails", message[:1_000], attempt.split("/")[1]))

    async def looked_at(self, runs: Sequence[StaleRun], *, done: Sequence[str]) -> None:
        """Forget the attempts about whose runs nothing is left to do; the others go behind those not looked at."""
        await self._database.transaction(
            ("DELETE FROM stale_run WHERE attempt = ANY(%(done)s::text[])", {"done": list(done)}),
            (
                "UPDATE stale_run SET due_at = clock_timestamp() WHERE attempt = ANY(%(attempts)s::text[])",
                {"attempts": [r.attempt for r in runs]},
            ),
        )

    async def watch(self, *, stuck_after: timedelta, undo_stalled_after: timedelta, worker_gone: timedelta) -> None:
        """Alert on tasks that nobody claims, undos that don't finish, and what makes no progress, once each.

        Args:
            stuck_after: For how long a task is due. undo_stalled_after: how long ago undo was asked for.
            worker_gone: For how long a worker has not shown itself.
        """
        params = {
            "stuck_after_s": stuck_after.total_seconds(),
            "undo_stalled_after_s": undo_stalled_after.total_seconds(),
            "worker_gone_s": worker_gone.total_seconds(),
            "most": _MOST_WATCHED,
        }
        one_at_a_time = "SELECT pg_advisory_xact_lock(hashtext('watch_stuck'))"
        await self._database.transaction(
            (one_at_a_time, {}), (query("watch_stuck"), params), (query("watch_progress"), params)
        )

    async def last_sweep_age(self) -> timedelta | None:
        """How long ago a sweep last finished; None if none ever did."""
        rows = await self._database.rows(
            "SELECT extract(epoch FROM clock_timestamp() - max(finished_at))::float8 AS age_s FROM sweep"
        )
        return None if rows[0]["age_s"] is None else timedelta(seconds=rows[0]["age_s"])

    async def alert_missed_sweep(self, message: str) -> bool:
        """Alert on a missed sweep, once an outage; whether this call raised it."""
        return bool(await self._database.rows(query("alert_missed_sweep"), {"message": message}))

    async def _recover(self, decisions: Sequence[Recovery], params: Params) -> list[tuple[str, str]]:
        """Carry out decisions in one transaction; nobody's lock is waited for."""
        page = json.dumps([d.model_dump(mode="json") for d in decisions])
        _, rows = await self._database.transaction(
            ("SET LOCAL lock_timeout = '200ms'", {}),
            (query("recover"), {**params, "decisions": page}),
            once=True,
        )
        return [(r["task_id"], r["locked_by"]) for r in rows[1]]
