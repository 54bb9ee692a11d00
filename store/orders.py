"""The orders database: the business record of each task, written once, amended only by an audited resubmit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from domain.messages import Json
from store.database import Database, query


@dataclass(frozen=True)
class Record:
    """A business record, and the digest it was first written with; no `record` where it was abandoned unwritten."""

    record: Json | None
    digest: str


class Orders:
    """Business records, by task id."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(
        self, task_id: str, definition: str, record: Json, digest: str
    ) -> Literal["created", "restarted", "same", "different"]:
        """Create the record if it is missing or was abandoned; else say whether its digest is the same (A2, A3).

        Where an acknowledgement was lost, a record just created is the `same`.
        """
        params = {
            "task_id": task_id,
            "definition": definition,
            "record": json.dumps(record),
            "digest": digest,
        }
        rows = await self.database.rows(query("create_record"), params)
        if rows:
            return "created" if rows[0]["fresh"] else "restarted"
        found = await self.database.rows("SELECT digest FROM business_record WHERE task_id = %(task_id)s", params)
        return "same" if found and found[0]["digest"] == digest else "different"

    async def load(self, task_ids: Sequence[str]) -> dict[str, Record]:
        """The records there are of those ids, amended where they were amended."""
        rows = await self.database.rows(
            "SELECT task_id, record, digest FROM business_record WHERE task_id = ANY(%(ids)s)",
            {"ids": list(task_ids)},
        )
        return {r["task_id"]: Record(r["record"], r["digest"]) for r in rows}

    async def abandon(self, task_id: str, definition: str, digest: str) -> bool:
        """Close a submission that never finished. False: its own record, of that digest, is there after all (A6)."""
        rows = await self.database.rows(
            query("abandon_record"), {"task_id": task_id, "definition": definition, "digest": digest}
        )
        return bool(rows)

    async def amend(self, task_id: str, record: Json) -> None:
        """Replace the details on an operator's word; the digest of the first submission stays."""
        await self.database.rows(
            "UPDATE business_record SET record = %(record)s::jsonb, amendments = amendments + 1,"
            " updated_at = clock_timestamp() WHERE task_id = %(task_id)s RETURNING task_id",
            {"task_id": task_id, "record": json.dumps(record)},
        )
