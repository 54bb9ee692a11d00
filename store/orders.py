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
    """A business record. `record` is None where the submission was abandoned before it was written."""

    task_id: str
    record: Json | None


class Orders:
    """Business records, by task id."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def create(
        self, task_id: str, definition: str, record: Json, digest: str
    ) -> Literal["created", "same", "different"]:
        """Create the record if it is missing or was abandoned; else say whether its digest is the same (A2, A3)."""
        params = {
            "task_id": task_id,
            "definition": definition,
            "record": json.dumps(record),
            "digest": digest,
        }
        rows = await self.database.rows(query("create_record"), params)
        if rows:
            return "created"
        found = await self.database.rows("SELECT digest FROM business_record WHERE task_id = %(task_id)s", params)
        return "same" if found and found[0]["digest"] == digest else "different"

    async def load(self, task_ids: Sequence[str]) -> dict[str, Record]:
        """The records there are of those ids, amended where they were amended."""
        rows = await self.database.rows(
            "SELECT task_id, record FROM business_record WHERE task_id = ANY(%(ids)s)",
            {"ids": list(task_ids)},
        )
        return {r["task_id"]: Record(r["task_id"], r["record"]) for r in rows}

    async def abandon(self, task_id: str, definition: str) -> bool:
        """Close a submission that never finished. False: its record is there after all (A6)."""
        rows = await self.database.rows(query("abandon_record"), {"task_id": task_id, "definition": definition})
        return bool(rows)

    async def amend(self, task_id: str, record: Json) -> None:
        """Replace the details on an operator's word; the digest of the first submission stays."""
        await self.database.rows(
            "UPDATE business_record SET record = %(record)s::jsonb, amendments = amendments + 1,"
            " updated_at = clock_timestamp() WHERE task_id = %(task_id)s RETURNING task_id",
            {"task_id": task_id, "record": json.dumps(record)},
        )
