"""The state store by itself, without Temporal: a few words to submit, claim and begin, for the tests beside it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import pairwise
from typing import Any

from psycopg.rows import dict_row

from definitions import registry
from devstack.servers.postgres import EmbeddedPostgres
from domain.attempts import BeginStep, UndoCall
from domain.definition import Definition
from store.admission import Admission, AdmissionCaps
from store.breakers import BreakerTerms, CircuitBreakers
from store.claims import Hold
from store.connection import connect
from store.database import Database
from store.orders import Orders
from store.snapshot import Snapshot
from store.state_store import StateStore
from store.submission import SubmissionDesk, SubmissionOutcome, digest_of
from store.supervision import Supervision
from testing.databases import Databases, publish_all
from testing.records import MACHINE, ORDER

ROOMY = AdmissionCaps(in_flight=1_000_000, pending=1_000_000, pending_age=timedelta(days=1))
BREAKER = BreakerTerms(failures=3, pause=timedelta(0), per_s=10, ramp=timedelta(seconds=4))
LOADED = [(d.name, d.version) for d in registry()]
RECORDS = {"order": ORDER, "provisioning": MACHINE}
RUN = "run-1"


class StoreBench:
    """Both databases, opened as the application; `owner` looks at and sets up what no application may."""

    def __init__(self, databases: Databases, state: Database, orders: Database, supervisor: Database) -> None:
        self.databases, self.database = databases, state
        self._owner = connect(databases.owner, autocommit=True, row_factory=dict_row)
        self._owner.execute("SET session_replication_role = replica")
        self._orders_owner = connect(databases.orders_owner, autocommit=True, row_factory=dict_row)
        self.store = StateStore(state)
        self.orders = Orders(orders)
        self.admission = Admission(state, ROOMY)
        self.breakers = CircuitBreakers(state, BREAKER)
        self.desk = SubmissionDesk(self.admission, self.orders, registry())
        self.supervision = Supervision(supervisor)

    def owner(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        """Run a statement as the owner of the state store, past every trigger."""
        cursor = self._owner.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def orders_owner(self, statement: str, **params: Any) -> list[dict[str, Any]]:
        """Run a statement as the owner of the orders database."""
        cursor = self._orders_owner.execute(statement, params)
        return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        """Forget every task: what the next test finds is as good as new."""
        tables = ("task", "step", "compensation", "event", "alert", "dead_letter", "inbox", "sweep")
        for table in (*tables, "service", "service_event"):
            self.owner(f"DELETE FROM {table}")  # noqa: S608 (our own tables)
        self.orders_owner("DELETE FROM business_record")

    def close(self) -> None:
        """Close the owner's connections."""
        self._owner.close()
        self._orders_owner.close()

    async def submitted(self, task_id: str, definition: str = "order") -> str:
        """A task that was submitted."""
        await self.submit(task_id, definition)
        return task_id

    async def submit(self, task_id: str, definition: str = "order", **record: Any) -> SubmissionOutcome:
        """Submit a task; `record` changes its business record."""
        message = {"task_id": task_id, "definition": definition, "record": {**RECORDS[definition], **record}}
        return await self.desk.submit(self.desk.parse(json.dumps(message)))

    async def claimed(self, task_id: str, definition: str = "order", run_id: str = RUN) -> Hold:
        """A new task that was submitted and claimed."""
        await self.submitted(task_id, definition)
        return await self.claim(task_id, run_id)

    async def claim(self, task_id: str, run_id: str = RUN) -> Hold:
        """Claim this task, due or not."""
        self.owner("UPDATE task SET not_before = clock_timestamp() WHERE task_id = %(id)s", id=task_id)
        (claim,) = await self.store.claims.claim("worker", LOADED, 1_000, [task_id])
        assert claim.task.task_id == task_id
        return claim.hold(run_id)

    async def begun(self, task_id: str, definition: str = "order", step: str | None = None) -> Hold:
        """A new task that was claimed, and whose steps are done up to `step` (default: the first), which is begun."""
        hold = await self.claimed(task_id, definition)
        await self.forward(hold, definition, step)
        return hold

    async def forward(self, hold: Hold, definition: str = "order", step: str | None = None) -> None:
        """Do the steps that are open one by one up to `step` (default: the first open one), which is begun."""
        for s in shipped(definition).steps:
            task = await self.task(hold.task_id)
            if task.step(s.name).state != "Completed":
                report = await self.store.forward.advance(hold, begin=begin(s.name, definition))
                assert report.grant is not None, report
                if s.name == step or step is None:
                    return
                await self.store.forward.advance(hold, done=s.name, result={"of": s.name}, calls=1)

    async def processed(self, task_id: str, definition: str = "order") -> Hold:
        """A new task that was done without any fault."""
        hold = await self.claimed(task_id, definition)
        await self.forward(hold, definition, "nothing")
        return hold

    async def task(self, task_id: str) -> Snapshot:
        """A task that must be there."""
        found = await self.store.tasks.find(task_id)
        assert found is not None
        return found

    def step(self, task_id: str, name: str) -> dict[str, Any]:
        """A step row, with every column."""
        (row,) = self.owner("SELECT * FROM step WHERE task_id = %(id)s AND name = %(name)s", id=task_id, name=name)
        return row

    def row(self, task_id: str) -> dict[str, Any]:
        """A task row, with every column."""
        (row,) = self.owner("SELECT * FROM task WHERE task_id = %(id)s", id=task_id)
        return row

    def kinds(self, task_id: str) -> list[str]:
        """Kinds of a task's events, by number."""
        rows = self.owner("SELECT kind FROM event WHERE task_id = %(id)s ORDER BY number", id=task_id)
        return [r["kind"] for r in rows]

    def log(self, task_id: str) -> list[tuple[int, str, str]]:
        """The compensation log: seq, step, state."""
        rows = self.owner("SELECT seq, step, state FROM compensation WHERE task_id = %(id)s ORDER BY seq", id=task_id)
        return [(r["seq"], r["step"], r["state"]) for r in rows]

    def expire(self, task_id: str) -> None:
        """Let the deadlines of a held task, and of its running steps, be over now."""
        self.owner("UPDATE task SET complete_by = clock_timestamp() WHERE task_id = %(id)s", id=task_id)
        self.owner(
            "UPDATE step SET complete_by = clock_timestamp()"
            " WHERE task_id = %(id)s AND state IN ('Running', 'Undoing')",
            id=task_id,
        )

    def contents(self, task_id: str) -> list[Any]:
        """Everything that is on record of a task: to see that nothing was changed."""
        tables = ("task", "step", "compensation", "event", "alert")
        return [
            self.owner(f"SELECT * FROM {t} AS t WHERE task_id = %(id)s ORDER BY t::text", id=task_id)  # noqa: S608
            for t in tables
        ]

    def is_consistent(self, task_id: str) -> None:
        """Events are numbered without a gap, each follows from the one before, and the last one is the row's."""
        events = self.owner("SELECT * FROM event WHERE task_id = %(id)s ORDER BY number", id=task_id)
        row = self.row(task_id)
        assert [e["number"] for e in events] == list(range(1, row["last_event"] + 1))
        for before, after in pairwise(events):
            assert after["state_from"] == before["state_to"], (before, after)
        assert (events[-1]["state_to"], events[-1]["epoch"]) == (row["state"], row["epoch"])
        assert (row["locked_by"] is None) == (row["complete_by"] is None)


@asynccontextmanager
async def open_store_bench(databases: Databases, *, size: int = 8) -> AsyncIterator[StoreBench]:
    """The state store on fresh databases, with the policies of both definitions published."""
    async with AsyncExitStack() as stack:
        state = await stack.enter_async_context(Database(databases.app, name="state store", size=size))
        orders = await stack.enter_async_context(Database(databases.orders, name="orders database", size=size))
        supervisor = await stack.enter_async_context(Database(databases.supervisor, name="state store", size=size))
        bench = StoreBench(databases, state, orders, supervisor)
        stack.callback(bench.close)
        await publish_all(bench.admission)
        yield bench


@asynccontextmanager
async def own_store_bench(server: EmbeddedPostgres) -> AsyncIterator[StoreBench]:
    """The same on databases of its own, for the tests of one file, which empty them between one another."""
    with Databases(server) as databases:
        async with open_store_bench(databases) as bench:
            yield bench


def shipped(definition: str) -> Definition:
    """A shipped definition."""
    found = registry().newest(definition)
    assert found is not None
    return found


def begin(step: str, definition: str = "order", **more: Any) -> BeginStep:
    """Terms of a step's beginning, as its definition has them."""
    found = shipped(definition).step(step)
    undo = UndoCall(action=found.undo.action, body={"undo": step}) if found.undo else None
    terms = {"within_s": 60.0, "calls": found.calls, "undo": undo, **more}
    return BeginStep(step=step, **terms)


def undo(step: str, **more: Any) -> BeginStep:
    """Terms of the beginning of a step's undo."""
    return BeginStep(step=step, **{"within_s": 60.0, "calls": 5, **more})


def order_digest() -> str:
    """Digest of the order that these tests submit."""
    record = shipped("order").record.model_validate(ORDER).model_dump(mode="json")
    return digest_of("order", record)
