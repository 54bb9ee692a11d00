"""Finishes machines after their creation was accepted, and tells their owners.

The ledger is the to-do list: an accepted machine is a live operation with status 202, an owner to be told
is a callback row without `delivered_at`. So a restart goes on where the last process stopped.
"""

import asyncio
import json
from collections.abc import Coroutine
from datetime import UTC, datetime

import httpx

from devstack.simulators.ledger import Ledger, now
from devstack.simulators.messages import canonical, stable_uuid
from devstack.simulators.services.cloud import MACHINES, MachineRequest, finished_machine

_CALLBACK_ATTEMPTS = 8
_FIRST_PAUSE_S = 0.1
_CALLBACK_TIMEOUT_S = 5.0


class MachineBuilder:
    """Works off accepted machines in the background, one asyncio task a machine."""

    def __init__(self, ledger: Ledger, delay_s: float) -> None:
        """Prepares a builder that needs `delay_s` for a machine; nothing runs before `start`."""
        self.delay_s = delay_s
        self._ledger = ledger
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = httpx.AsyncClient(timeout=_CALLBACK_TIMEOUT_S, trust_env=False)

    def start(self) -> None:
        """Resumes what an earlier process left unfinished."""
        for row in self._ledger.query(
            "SELECT key FROM operation WHERE path = ? AND state = 'done' AND status = 202", (MACHINES,)
        ):
            self._spawn(self._build(row["key"]))
        for row in self._ledger.query("SELECT key FROM callback WHERE delivered_at IS NULL"):
            self._spawn(self._tell(row["key"]))

    async def stop(self) -> None:
        """Stops work; the ledger keeps what is left to do."""
        await self.drop_all()
        await self._client.aclose()

    async def drop_all(self) -> None:
        """Stops work on every machine and every callback; `start` would take it up again."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def on_executed(self, path: str, key: str) -> None:
        """Takes on a machine whose creation was just committed; other paths are none of its business."""
        if path == MACHINES:
            self._spawn(self._build(key))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _build(self, key: str) -> None:
        row = self._ledger.find(key)
        if row is not None:
            age = datetime.now(UTC) - datetime.fromisoformat(row["created_at"])
            await asyncio.sleep(max(0.0, self.delay_s - age.total_seconds()))
            if self._finish(key):
                await self._tell(key)

    def _finish(self, key: str) -> bool:
        """Turns the saved answer into that of a finished machine; False if it was undone meanwhile."""
        row = self._ledger.find(key)
        if row is None or row["state"] != "done" or row["status"] != 202:
            return False
        request = MachineRequest.model_validate_json(row["body"])
        result = finished_machine(request, key)
        payload = {
            "response_id": str(stable_uuid("response", key)),
            "key": key,
            "status": "done",
            "result": result,
        }
        with self._ledger.transaction() as connection:
            connection.execute(
                "UPDATE operation SET status = 200, answer = ? WHERE key = ? AND state = 'done'",
                (canonical({"state": "done", **result}), key),
            )
            if request.callback_url is not None:
                connection.execute(
                    "INSERT INTO callback (key, url, payload, finished_at) VALUES (?, ?, ?, ?)",
                    (key, request.callback_url, canonical(payload), now()),
                )
        return True

    async def _tell(self, key: str) -> None:
        """Posts the callback until somebody takes it, a 4xx refuses it or the machine is undone."""
        for attempt in range(_CALLBACK_ATTEMPTS):
            await asyncio.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1) if attempt else 0)
            row = self._undelivered(key)
            if row is None or await self._post(key, *row):
                return

    def _undelivered(self, key: str) -> tuple[str, str] | None:
        rows = self._ledger.query(
            "SELECT url, payload FROM callback JOIN operation USING (key)"
            " WHERE key = ? AND state = 'done' AND delivered_at IS NULL",
            (key,),
        )
        return (rows[0]["url"], rows[0]["payload"]) if rows else None

    async def _post(self, key: str, url: str, payload: str) -> bool:
        try:
            response = await self._client.post(url, json=json.loads(payload))
            delivered = response.status_code < 300 or 400 <= response.status_code < 500
        except (httpx.HTTPError, httpx.InvalidURL):
            delivered = False  # not there, or not yet: the next attempt or the next start tries again
        with self._ledger.transaction() as connection:
            connection.execute(
                "UPDATE callback SET attempts = attempts + 1, delivered_at = ? WHERE key = ?",
                (now() if delivered else None, key),
            )
        return delivered
