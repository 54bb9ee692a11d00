"""The orders database: the business record of each task, written once, amended only by an audited resubmit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from domain.messages import Json
from store.database import Database
from store.queries import query

_DIGEST = "SELECT digest FROM business_record WHERE task_id = %(task_id)s"
"""Whose record it is; behind a write of the same transaction, so that it sees what that has met."""


@dataclass(frozen=True)
class Record:
    """A business record, and the digest it was first written with; no `record` where it was abandoned unwritten.

    `amendments`: how often it has been amended.
    """

    record: Json | None
    digest: str
    amendments: int = 0


@dataclass(frozen=True)
class Amendment:
    """New details for a record that was read when it had been amended `seen` times. Made again, it changes nothing."""

    task_id: str
    record: Json
    seen: int
    id: str = field(default_factory=lambda: uuid4().hex)


class Orders:
    """Business records, by task id."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(self, task_id: str, definition: str, record: Json, digest: str) -> bool:
        """Create the record if it is missing or was abandoned. False: there is another one of that id."""
        params = {
            "task_id": task_id,
            "definition": definition,
            "record": json.dumps(record),
            "digest": digest,
        }
        _, (_, found) = await self.database.transaction((query("create_record"), params), (_DIGEST, params))
        return bool(found[0]["digest"] == digest)

    async def load(self, task_ids: Sequence[str]) -> dict[str, Record]:
        """The records there are of those ids, amended where they were amended."""
        rows = await self.database.rows(
            "SELECT task_id, record, digest, amendments FROM business_record WHERE task_id = ANY(%(ids)s)",
            {"ids": list(task_ids)},
        )
        return {r["task_id"]: Record(r["record"], r["digest"], r["amendments"]) for r in rows}

    async def abandon(self, task_id: str, definition: str, digest: str) -> bool:
        """Close a submission that never finished. False: its own record, of that digest, is there after all."""
        params = {"task_id": task_id, "definition": definition}
        _, (_, found) = await self.database.transaction((query("abandon_record"), params), (_DIGEST, params))
        return bool(found[0]["digest"] != digest)

    async def amend(self, amendment: Amendment) -> bool:
        """Replace the details on an operator's word; the digest of the first submission stays.

        Returns:
            Whether it is made, now or before. False: somebody else has amended the record since it was read.
        """
        params = {
            "task_id": amendment.task_id,
            "record": json.dumps(amendment.record),
            "seen": amendment.seen,
            "amendment": amendment.id,
        }
        return bool(await self.database.rows(query("amend_record"), params))
