"""The state store as submission sees it: admission, contradictions, and submissions that never finished."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

from domain.definition import Definition
from domain.messages import Json
from store.database import Database, query
from store.snapshot import Snapshot

ALIVE = timedelta(seconds=10)
"""How often a worker shows its definitions; one that has not for three of these counts as gone."""

_ADMISSION_LOCK = 7_233_002


@dataclass(frozen=True)
class Caps:
    """Bounds on what is taken in, for each pipeline by itself; never applied to recovery or undo (A7, A8)."""

    in_flight: int
    pending: int
    pending_age: timedelta


@dataclass(frozen=True)
class Admitted:
    """The state row is there: `new`, or from an earlier delivery with the same digest."""

    new: bool


@dataclass(frozen=True)
class Full:
    """Nothing was written: a cap is reached."""

    reason: str
    retry_after: timedelta


@dataclass(frozen=True)
class Contradiction:
    """A record of that id says something else, or says it in the words of another version of the definition."""

    definition: str
    version: int


@dataclass(frozen=True)
class NewTask:
    """What the state row of a submission starts with (A5)."""

    task_id: str
    definition: Definition
    digest: str
    submitter: str
    reply_to: str | None


class Intake:
    """Writes of the submission path, as the application's role."""

    def __init__(self, database: Database, caps: Caps) -> None:
        self._database, self._caps = database, caps

    async def admit(self, new: NewTask) -> Admitted | Full | Contradiction:
        """Create the state row if it is missing and the caps leave room, all in one transaction (A2, A9)."""
        _, rows = await self._database.transaction(
            ("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _ADMISSION_LOCK}),
            (query("find_task"), {"task_id": new.task_id}),
            (query("admit"), self._params(new)),
        )
        if rows[1]:
            found = rows[1][0]
            if found["record_digest"] == new.digest and found["definition"] == new.definition.name:
                return Admitted(new=False)
            return Contradiction(found["definition"], found["version"])
        load = rows[2][0]
        return Admitted(new=True) if load["added"] else self._full(new.definition.name, load)

    async def is_unfinished(self, task_id: str) -> bool:
        """Whether nothing tells that a task without its business record ever had one: see `unfinished.sql` (A6)."""
        return bool(await self._database.rows(query("unfinished"), {"task_id": task_id}))

    async def withdraw(self, seen: Snapshot, message: str) -> bool:
        """Remove the row of a submission that never finished, if nothing has happened to it since it was `seen` (A6).

        Returns:
            Whether it was removed. `message` is the alert's.
        """
        key = {"task_id": seen.task_id}
        params = {**key, "last_event": seen.last_event, "created_at": seen.created_at, "message": message}
        counts, _ = await self._database.transaction((query("lock"), key), (query("withdraw"), params))
        return counts[1] > 0

    async def is_on_record(self, task_id: str) -> bool:
        """Whether there is a task of that id."""
        return bool(await self._database.rows(query("find_task"), {"task_id": task_id}))

    async def keep(self, task_id: str) -> bool:
        """Make sure that a row whose business record is there is not withdrawn any more; False: it was already.

        Whoever found the record missing may have yet to remove the row: nothing may be acknowledged before this.
        """
        key = {"task_id": task_id}
        _, rows = await self._database.transaction((query("lock"), key), (query("keep"), key))
        return bool(rows[1])

    async def dead_letter(self, task_id: str, submitter: str, reason: str, message: Json) -> None:
        """Keep a submission that contradicts the record, and alert an operator (A4)."""
        await self._database.rows(
            query("dead_letter"),
            {"task_id": task_id, "submitter": submitter, "reason": reason, "message": json.dumps(message)},
        )

    async def alert_once(self, kind: str, task_id: str, message: str) -> None:
        """Raise an alert, unless one of its kind was raised within the hour."""
        await self._database.rows(query("alert_once"), {"kind": kind, "task_id": task_id, "message": message})

    async def publish(self, definition: Definition) -> bool:
        """Put a definition's policies where the Supervisor finds them. False: that version says something else."""
        rows = await self._database.rows(
            query("publish_definition"),
            {
                "name": definition.name,
                "version": definition.version,
                "policies": json.dumps(definition.policies()),
            },
        )
        return bool(rows[0]["same"])

    async def live_worker_for(self, definition: str, within: timedelta) -> bool:
        """Whether a worker that has this definition has shown itself within that time."""
        rows = await self._database.rows(
            "SELECT EXISTS (SELECT 1 FROM definition WHERE name = %(name)s"
            " AND seen_at > clock_timestamp() - make_interval(secs => %(within_s)s)) AS live",
            {"name": definition, "within_s": within.total_seconds()},
        )
        return bool(rows[0]["live"])

    def _params(self, new: NewTask) -> dict[str, object]:
        policies = new.definition.policies()["steps"]
        keys = ("position", "pivot", "service", "quarantine_s", "budget", "undo_budget")
        return {
            "task_id": new.task_id,
            "definition": new.definition.name,
            "version": new.definition.version,
            "record_digest": new.digest,
            "reply_to": new.reply_to,
            "submitter": new.submitter,
            "data_class": new.definition.data_class,
            "steps": json.dumps([{"name": n, **{k: p[k] for k in keys}} for n, p in policies.items()]),
            "max_in_flight": self._caps.in_flight,
            "max_pending": self._caps.pending,
            "max_pending_age_s": self._caps.pending_age.total_seconds(),
        }

    def _full(self, pipeline: str, load: dict[str, float]) -> Full:
        caps = self._caps
        if load["in_flight"] >= caps.in_flight:
            return Full(f"{caps.in_flight} {pipeline} tasks are in flight, which is the cap", timedelta(seconds=10))
        if load["pending"] >= caps.pending:
            return Full(f"{caps.pending} {pipeline} tasks are pending, which is the cap", timedelta(seconds=10))
        age = timedelta(seconds=round(load["oldest_pending_s"]))
        return Full(
            f"the oldest pending {pipeline} task has waited {age}, over the cap of {caps.pending_age}",
            timedelta(seconds=30),
        )
