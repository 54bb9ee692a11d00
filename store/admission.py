"""The state store as submission sees it: admission, confirmation, contradictions, and what was never finished."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from domain.definition import Definition
from domain.messages import Json
from store.alerts import alert_once
from store.database import Database
from store.queries import query

ALIVE = timedelta(seconds=10)
"""How often a worker shows its definitions."""

GONE = 3 * ALIVE
"""A worker that has not shown itself for so long counts as gone."""

_ADMISSION_LOCK = 7_233_002


@dataclass(frozen=True)
class AdmissionCaps:
    """Bounds on what is taken in, for each definition by itself; never applied to recovery or undo."""

    in_flight: int
    pending: int
    pending_age: timedelta


@dataclass(frozen=True)
class Admitted:
    """The state row is there: `new`, or from an earlier delivery with the same digest."""

    new: bool


@dataclass(frozen=True)
class CapReached:
    """Nothing was written: come again later."""

    task_id: str
    reason: str
    retry_after: timedelta


@dataclass(frozen=True)
class RecordDiffers:
    """A record of that id says something else, or says it in the words of another version of the definition."""

    definition: str
    version: int


@dataclass(frozen=True)
class NewTask:
    """What the state row of a submission starts with."""

    task_id: str
    definition: Definition
    digest: str
    submitter: str
    reply_to: str | None


@dataclass(frozen=True)
class Unfinished:
    """A state row that is not confirmed, as it was seen."""

    task_id: str
    definition: str
    digest: str
    submitter: str
    created_at: datetime


class Admission:
    """Writes of the submission path, as the application's role."""

    def __init__(self, database: Database, caps: AdmissionCaps) -> None:
        self._database, self._caps = database, caps

    async def admit(self, new: NewTask) -> Admitted | CapReached | RecordDiffers:
        """Create the state row if it is missing and the caps leave room, all in one transaction."""
        _, rows = await self._database.transaction(
            ("SELECT pg_advisory_xact_lock(%(lock)s)", {"lock": _ADMISSION_LOCK}),
            (query("find_task"), {"task_id": new.task_id}),
            (query("admit"), self._params(new)),
        )
        if rows[1]:
            found = rows[1][0]
            if found["record_digest"] == new.digest and found["definition"] == new.definition.name:
                return Admitted(new=False)
            return RecordDiffers(found["definition"], found["version"])
        load = rows[2][0]
        return Admitted(new=True) if load["added"] else self._cap_reached(new, load)

    async def definition_of(self, task_id: str) -> tuple[str, int] | None:
        """Name and version of the definition of a task; None if there is no task of that id."""
        found = await self._database.rows(query("find_task"), {"task_id": task_id})
        return (found[0]["definition"], found[0]["version"]) if found else None

    async def confirm(self, task_id: str, digest: str, *, actor: str) -> bool:
        """Make a task claimable whose business record is there; nothing may be acknowledged before this.

        Returns:
            Whether it is confirmed, now or before. False: there is no row of this digest any more.
        """
        key = {"task_id": task_id}
        params = {**key, "digest": digest, "actor": actor}
        _, rows = await self._database.transaction((query("lock"), key), (query("confirm"), params))
        return bool(rows[1])

    async def unconfirmed(self, grace: timedelta, page: int, after: Unfinished | None) -> list[Unfinished]:
        """The next page behind `after` of submissions that were not finished within the grace, oldest first."""
        params = {
            "grace_s": grace.total_seconds(),
            "page": page,
            "after_at": after.created_at if after else "-infinity",
            "after_id": after.task_id if after else "",
        }
        return [Unfinished(**r) for r in await self._database.rows(query("unconfirmed"), params)]

    async def remove(self, seen: Unfinished) -> bool:
        """Remove the row of a submission that never finished, with an alert; only as it was seen, and unconfirmed.

        Returns:
            Whether it was removed.
        """
        message = (
            f"its submission by {seen.submitter}, {seen.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, was never"
            " finished, and is removed: it has no business record of its own"
        )
        key = {"task_id": seen.task_id}
        params = {**key, "created_at": seen.created_at, "message": message}
        counts, _ = await self._database.transaction((query("lock"), key), (query("remove_unconfirmed"), params))
        return counts[1] > 0

    async def dead_letter(self, task_id: str, submitter: str, reason: str, message: Json) -> None:
        """Keep a submission that contradicts the record, once, and alert an operator."""
        text = json.dumps(message, sort_keys=True)
        letter = {"task_id": task_id, "submitter": submitter, "reason": reason, "letter": text}
        digest = hashlib.sha256(text.encode()).hexdigest()
        await self._database.rows(query("dead_letter"), letter | {"digest": digest})

    async def alert_once(self, kind: str, task_id: str, message: str) -> None:
        """Raise an alert, unless one of its kind was raised within the hour."""
        await self._database.transaction(alert_once(kind, message, task_id))

    async def publish(self, definition: Definition, worker: str = "") -> bool:
        """Put a definition's policies where the Supervisor finds them, and show that this worker has it.

        Returns:
            Whether that version says the same as before.
        """
        params = {
            "name": definition.name,
            "version": definition.version,
            "policies": json.dumps(definition.policies()),
            "worker": worker,
        }
        on_record = "SELECT policies FROM definition WHERE name = %(name)s AND version = %(version)s"
        _, (_, found) = await self._database.transaction((query("publish_definition"), params), (on_record, params))
        return definition.agrees_with(found[0]["policies"])

    async def leave(self, worker: str) -> None:
        """Show that this worker has its definitions no more."""
        await self._database.rows("DELETE FROM presence WHERE worker = %(worker)s", {"worker": worker})

    def _params(self, new: NewTask) -> dict[str, object]:
        policies = new.definition.policies()["steps"]
        keys = ("position", "pivot", "service", "quarantine_s", "budget", "undo_budget")
        steps = [
            {"name": s.name, "answers_later": s.answers_later, **{k: policies[s.name][k] for k in keys}}
            for s in new.definition.steps
        ]
        return {
            "task_id": new.task_id,
            "definition": new.definition.name,
            "version": new.definition.version,
            "record_digest": new.digest,
            "reply_to": new.reply_to,
            "submitter": new.submitter,
            "data_class": new.definition.data_class,
            "steps": json.dumps(steps),
            "max_in_flight": self._caps.in_flight,
            "max_pending": self._caps.pending,
            "max_pending_age_s": self._caps.pending_age.total_seconds(),
        }

    def _cap_reached(self, new: NewTask, load: dict[str, float]) -> CapReached:
        caps, name, soon = self._caps, new.definition.name, timedelta(seconds=10)
        if load["in_flight"] >= caps.in_flight:
            return CapReached(new.task_id, f"{caps.in_flight} {name} tasks are in flight, which is the cap", soon)
        if load["pending"] >= caps.pending:
            return CapReached(new.task_id, f"{caps.pending} {name} tasks are pending, which is the cap", soon)
        age = timedelta(seconds=round(load["oldest_pending_s"]))
        reason = f"the oldest pending {name} task has waited {age}, over the cap of {caps.pending_age}"
        return CapReached(new.task_id, reason, timedelta(seconds=30))
