"""Two Agents: of a hall, over HTTP, and of a guest book, which is a database file of our own."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

from pydantic import BaseModel
from sas.activities.agent import Agent, Found, action
from sas.activities.asked_by_key import AskedByKey
from sas.activities.call import Call
from sas.domain.faults import PermanentFault


class Line(BaseModel):
    """So many seats of a row."""

    sku: str
    quantity: int


class Hold(BaseModel):
    """Seats to hold."""

    sku_lines: list[Line]


class Held(BaseModel):
    """The seats that are held."""

    reservation_id: str


class Hall(AskedByKey):
    """Seats."""

    service = "hall"

    @action
    async def hold(self, call: Call, request: Hold) -> Held:
        """Hold seats."""
        reply = await call.post("/reservations", request)
        return Held.model_validate(reply.body)

    @action
    async def give_back(self, call: Call) -> None:
        """Give them back."""
        await call.undo("/reservations/undo")


class Entry(BaseModel):
    """A line of the guest book."""

    text: str


class GuestBook(Agent):
    """Lines by key; one that is struck before it is written stays out."""

    service = "guest_book"
    over_http = False
    needs = ("database",)

    @action
    async def write(self, call: Call, request: Entry) -> None:
        """Write a line. Refused for good: `undone`."""
        statement = "INSERT INTO line (key, text) VALUES (?, ?) ON CONFLICT DO NOTHING"
        async with call.once():
            await self._execute(call, statement, call.key, request.text)
            if (found := await self.find(call, call.key)) is None or found.state == "undone":
                raise PermanentFault("undone", "the line was struck before it was written")

    @action
    async def strike(self, call: Call) -> None:
        """Strike it, or leave a tombstone."""
        statement = "INSERT INTO line (key, struck) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET struck = 1"
        async with call.once():
            for key in call.keys:
                await self._execute(call, statement, key)

    async def find(self, call: Call, key: str) -> Found | None:
        """Whether the line is there."""
        rows = await self._execute(call, "SELECT struck FROM line WHERE key = ?", key)
        return Found("undone" if rows[0][0] else "done", 200, {}) if rows else None

    async def _execute(self, call: Call, statement: str, *values: str) -> list[tuple[int]]:
        return await asyncio.to_thread(_execute, call.service.credentials["database"], statement, values)


def _execute(database: str, statement: str, values: tuple[str, ...]) -> list[tuple[int]]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(statement, values).fetchall()
