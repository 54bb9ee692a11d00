"""Answers that came later: kept once each by key and response id, whoever waits for them."""

from __future__ import annotations

import json

from domain.messages import Outcome, OutcomeBox
from store.database import Database
from store.queries import query


class InboxStore:
    """The inbox, by idempotency key."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, response_id: str, key: str, outcome: Outcome) -> bool:
        """Keep an answer. False: the key has one of that response id already (a duplicate, counted)."""
        body = json.dumps(OutcomeBox(outcome=outcome).model_dump(mode="json"))
        params = {"response_id": response_id, "key": key, "body": body}
        # One at a time for each key: of two in the same instant, the first to be seen is the first by its time as well.
        lock = "SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))"
        _, rows = await self._database.transaction((lock, params), (query("put_answer"), params))
        return bool(rows[1][0]["deliveries"] == 1)

    async def find(self, key: str) -> Outcome | None:
        """The first answer to a key, which is the one that counts; None if there is none."""
        rows = await self._database.rows(
            "SELECT body FROM inbox WHERE key = %(key)s ORDER BY received_at, response_id LIMIT 1", {"key": key}
        )
        return OutcomeBox.model_validate(rows[0]["body"]).outcome if rows else None
