"""An Agent with a database of its own, by the barrier in its transaction: no HTTP anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from activities.agent import Agent, Found, action
from activities.barrier import TABLES, found, once, undo_once
from activities.call import Call
from domain.faults import NotSent
from domain.messages import Completed, Failed, Json, Outcome, Overtaken, StoodDown
from testing.databases import Databases
from testing.waiting import eventually
from tests.integration.asked import ask

ACCOUNTS = "CREATE TABLE account (name text PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0));"


class Move(BaseModel):
    """So much from one account."""

    amount: int
    pause_s: float = 0.0


class Moved(BaseModel):
    """What is left."""

    amount: int
    balance: int


class Bank(Agent):
    """Accounts in a database."""

    service = "bank"
    over_http = False
    needs = ("database_url",)

    @action
    async def take(self, call: Call, request: Move) -> Moved:
        """Take it; what an account does not have is refused for good by the caller's own statement."""
        async with self._database(call) as database:

            async def work() -> Json:
                statement = "UPDATE account SET balance = balance - %s WHERE name = 'a' RETURNING balance"
                row = await (await database.execute(statement, (request.amount,))).fetchone()
                await asyncio.sleep(request.pause_s)
                assert row is not None
                return {"amount": request.amount, "balance": row[0]}

            return Moved.model_validate(await once(database, call, work))

    @action
    async def give_back(self, call: Call) -> None:
        """Give back what was taken."""
        async with self._database(call) as database:

            async def work(taken: Json) -> None:
                await database.execute("UPDATE account SET balance = balance + %s", (taken["amount"],))

            await undo_once(database, call, work)

    async def find(self, call: Call, key: str) -> Found | None:
        """The barrier knows."""
        async with self._database(call) as database:
            return await found(database, key)

    @asynccontextmanager
    async def _database(self, call: Call) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with call.once():
            try:
                database = await psycopg.AsyncConnection.connect(call.service.credentials["database_url"])
            except psycopg.OperationalError as error:
                raise NotSent("the database can't be reached") from error
            async with database:
                yield database


class Till:
    """The bank's database, and its Agent."""

    def __init__(self, url: str) -> None:
        self.url = url
        for statement in (TABLES, ACCOUNTS, "INSERT INTO account VALUES ('a', 100)"):
            self.sql(statement)

    def sql(self, statement: str) -> Any:
        """One value, or none."""
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() if cursor.description else None

    @property
    def balance(self) -> int:
        """Of the one account."""
        return int(self.sql("SELECT balance FROM account")[0])

    async def take(self, amount: int = 30, **more: Any) -> Outcome:
        """Ask for it."""
        pause_s = more.pop("pause_s", 0.0)
        body = {"amount": amount, "pause_s": pause_s}
        return await ask(Bank, "", "take", body=body, access={"database_url": self.url}, **more)

    async def give_back(self, **more: Any) -> Outcome:
        """Ask for the undo."""
        return await ask(Bank, "", "give_back", undo=True, access={"database_url": self.url}, **more)


@pytest.fixture
def till(databases: Databases) -> Till:
    """A database of its own."""
    return Till(databases.owner)


@pytest.mark.demand("C13", "C2")
async def test_repetition_gets_the_first_result_and_does_nothing(till: Till) -> None:
    first = await till.take(30)
    assert first == Completed(result={"amount": 30, "balance": 70}, calls=1)
    assert await till.take(30, epoch=4) == first
    assert till.balance == 70


@pytest.mark.demand("F5")
async def test_original_that_comes_after_its_undo_is_refused(till: Till) -> None:
    assert await till.give_back(epoch=3) == Completed(result={}, calls=1)
    late = await till.take(epoch=3)
    assert isinstance(late, Failed)
    assert (late.code, till.balance) == ("undone", 100)


@pytest.mark.demand("C14")
async def test_attempt_that_was_overtaken_changes_nothing(till: Till) -> None:
    await till.give_back(epoch=4)
    assert isinstance(await till.take(epoch=3), Overtaken)
    assert till.balance == 100


@pytest.mark.demand("C13", "F1")
async def test_undo_that_is_repeated_gives_back_once_by_every_key(till: Till) -> None:
    await till.take(30)
    for epoch in (4, 5):
        assert await till.give_back(epoch=epoch, keys=["t:s:0", "t:s:1"]) == Completed(result={}, calls=1)
        assert till.balance == 100
    assert isinstance(await till.take(30, epoch=6, keys=["t:s:1"]), Failed)


@pytest.mark.demand("C14", "F7")
async def test_undo_waits_for_an_original_that_is_at_work(till: Till) -> None:
    original = asyncio.create_task(till.take(30, pause_s=0.5))
    at_work = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'UPDATE account%' AND state LIKE 'idle%'"

    async def begun() -> bool:
        return bool(till.sql(at_work) == (1,))

    await eventually(begun)
    assert await till.give_back(epoch=4) == Completed(result={}, calls=1)
    assert isinstance(await original, Completed)
    assert till.balance == 100


@pytest.mark.demand("C15")
async def test_outcome_that_is_unknown_is_asked_of_the_barrier(till: Till) -> None:
    await till.take(30)
    assert await till.take(30, unknown=True) == Completed(result={"amount": 30, "balance": 70}, calls=1)
    assert await till.take(30, unknown=True, keys=["t:other:0"]) == Completed(
        result={"amount": 30, "balance": 40}, calls=2
    )


async def test_work_that_fails_leaves_no_trace(till: Till) -> None:
    assert not isinstance(await till.take(300, within_s=1.0), Completed)
    assert (till.balance, till.sql("SELECT count(*) FROM sas_barrier")) == (100, (0,))


async def test_database_that_is_away_costs_no_call(till: Till) -> None:
    till.url = "postgresql://127.0.0.1:9/nothing"
    outcome = await till.take(30)
    assert isinstance(outcome, StoodDown)
    assert outcome.sent == 0
