"""Every pair of writes that may meet on one row: it is as if one of them had come after the other.

The first is stopped in the middle of its transaction, behind its event; the second arrives meanwhile. It waits, and
then decides on what the first has left; or, if it takes many rows, passes this one over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from devstack.servers.postgres import EmbeddedPostgres
from domain.definition import Definition
from domain.states import TaskState, UndoState
from store.claims import Hold
from store.database import Database
from testing.databases import Databases
from tests.integration.store_bench import StoreBench, open_store_bench
from tests.property.definitions import ORDER, PROVISIONING
from tests.property.draws import next_of_run
from tests.property.model import Write
from tests.property.model.rows import Told
from tests.property.model.task import Task
from tests.property.system import LONG, StoreUnderTest

GATE = """
CREATE FUNCTION stop_first() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') = 'first' THEN PERFORM pg_advisory_xact_lock(1); END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER stop_first AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION stop_first();
"""
PASS_OVER = ("claim", "recover", "let_go")
"""Writes that take many rows, and leave out those that somebody has locked."""


class TwoSessions:
    """The state store with two ways in, of which the first can be stopped in the middle of a transaction."""

    def __init__(self, bench: StoreBench, first: tuple[Database, Database], second: tuple[Database, Database]) -> None:
        self.bench, self.first, self.second = bench, first, second

    @contextmanager
    def closed_gate(self) -> Iterator[None]:
        """Meanwhile the first stops behind its event."""
        self.bench.owner("SELECT pg_advisory_lock(1)")
        try:
            yield
        finally:
            self.bench.owner("SELECT pg_advisory_unlock(1)")

    async def stops(self, name: str, work: asyncio.Task[Told]) -> None:
        """Wait until this way in is waiting for a lock, or has done its work."""
        waiting = "SELECT 1 FROM pg_stat_activity WHERE application_name = %(name)s AND wait_event_type = 'Lock'"
        while not work.done() and not self.bench.owner(waiting, name=name):  # noqa: ASYNC110 (it is another process's)
            await asyncio.sleep(0.001)  # between two looks; the condition, not the time, decides


@pytest.fixture(scope="module")
async def sessions(templates: EmbeddedPostgres) -> AsyncIterator[TwoSessions]:
    """The state store on databases of this file."""
    with Databases(templates) as databases:
        with psycopg.connect(databases.owner) as owner:
            owner.execute(GATE)
        async with AsyncExitStack() as stack:
            bench = await stack.enter_async_context(open_store_bench(databases, size=2))
            ways = [
                Database(dsn, name=name, size=1)
                for name in ("first", "second")
                for dsn in (databases.app, databases.supervisor)
            ]
            for way in ways:
                await stack.enter_async_context(way)
            yield TwoSessions(bench, (ways[0], ways[1]), (ways[2], ways[3]))


class ModelledTask:
    """A task on both sides, brought into some state."""

    def __init__(self, sessions: TwoSessions, definition: Definition) -> None:
        self.task = Task(f"t-{uuid4().hex[:12]}", definition)
        self.real = StoreUnderTest(sessions.bench, self.task.task_id, definition)
        sessions.bench.owner("DELETE FROM service")
        self.hold: Hold | None = None
        self.decision = None

    async def follow(self, script: str) -> ModelledTask:
        """Do what the script says, word by word."""
        await self.real.admit()
        for word in script.split():
            write = SCRIPT[word](self)
            wanted = write.on(self.task)
            assert await self.real.do(write) == wanted
            if word == "claim":
                self.hold = self.task.started
        if self.task.late:
            self.decision = await self.real.decide(outage=False)
        return self

    def contenders(self) -> dict[str, Write]:
        """Who may write now, by a name for each."""
        found = {
            "claim": Write("claim", {}),
            "submit": Write("submit", {"same": True}),
            "tidy": Write("tidy", {}),
            "request_undo": Write("request_undo", {"holder": None, "definition": None}),
            "resubmit": Write("resubmit", {}),
            "resubmit corrected": Write("resubmit", {"corrected": True}),
        }
        for service in self.task.broken:
            found["breaker closes"] = Write("let_go", {"service": service})
        if self.decision:
            found["recover"] = Write("recover", {"decision": self.decision})
        for entry in self.task.log[-1:]:
            found["skip"] = Write("repair_undo", {"step": entry.step, "to": UndoState.SKIPPED})
            found["close by hand"] = Write("repair_undo", {"step": entry.step, "to": UndoState.CLOSED_BY_HAND})
        return found | (self._of_the_run(self.hold) if self.hold else {})

    def _of_the_run(self, hold: Hold) -> dict[str, Write]:
        begun = [n for n, s in self.task.steps.items() if s.epoch == hold.epoch] or [next(iter(self.task.steps))]
        step, last = begun[0], begun[-1]
        following = self.task.next_undo
        terms: dict[str, tuple[str, dict[str, Any]]] = {
            "cancel": ("request_undo", {"holder": hold.locked_by, "definition": None}),
            "begin": ("advance", {"hold": hold, "begin": step}),
            "complete": ("advance", {"hold": hold, "done": step, "result": {"n": 1}, "calls": 1}),
            "complete and begin": ("advance", _boundary(self.task, hold, last)),
            "fail": ("fail", {"hold": hold, "step": last, "unknown": False, "then": "undo"}),
            "give up": ("give_up", {"hold": hold, "step": step}),
            "release": ("release", {"hold": hold, "step": step, "sent": 0, "delay_s": 0.0}),
            "not started": ("not_started", {"hold": hold, "delay_s": 0.0, "most": None}),
            "refused for good": ("not_started", {"hold": hold, "delay_s": 0.0, "most": 1}),
            "begin undo": ("undo_advance", {"hold": hold, "begin": following}),
            "finish undo": ("undo_advance", {"hold": hold, "done": following, "calls": 1}),
            "undo fails": ("undo_fail", {"hold": hold, "step": following or step}),
            "late answer": ("late_answer", {"actor": hold.locked_by, "step": step}),
        }
        return {name: Write(*write) for name, write in terms.items()}


def _boundary(task: Task, hold: Hold, done: str) -> dict[str, Any]:
    then = task.definition.follower(task.definition.step(done))
    return {"hold": hold, "done": done, "result": {"n": 2}, "calls": 0, "begin": then.name if then else None}


def _on(modelled: ModelledTask) -> Write:
    assert modelled.hold
    return next_of_run(modelled.task, modelled.hold)


def _by_hold(name: str, **terms: Any) -> Callable[[ModelledTask], Write]:
    return lambda modelled: Write(name, {"hold": modelled.hold, **terms})


def _needed(task: Task) -> str:
    """The service that the task needs next."""
    step = task.definition.step(task.following or "")
    return (step.undo.action if step.undo and task.state is TaskState.COMPENSATING else step.action).partition(".")[0]


SCRIPT: dict[str, Callable[[ModelledTask], Write]] = {
    "record": lambda _: Write("write_record", {}),
    "submit": lambda _: Write("submit", {"same": True}),
    "claim": lambda _: Write("claim", {}),
    "on": _on,
    "address": _by_hold("advance", begin="address"),
    "disk": _by_hold("advance", begin="disk"),
    "wait": _by_hold("release", step=None, sent=None, delay_s=LONG.total_seconds()),
    "break": lambda modelled: Write("breaker", {"service": _needed(modelled.task), "is_open": True}),
    "time": lambda modelled: Write("time_passes", {"steps": modelled.task.at_work}),
    "give_up": lambda modelled: Write("give_up", {"hold": modelled.hold, "step": modelled.task.at_work[0]}),
    "fail": lambda modelled: Write(
        "fail", {"hold": modelled.hold, "step": modelled.task.at_work[0], "unknown": False, "then": "error"}
    ),
    "undo": lambda _: Write("request_undo", {"holder": None, "definition": None}),
    "undo_fail": lambda modelled: Write("undo_fail", {"hold": modelled.hold, "step": modelled.task.at_work[0]}),
}


@dataclass(frozen=True)
class Start:
    """A state to meet in, and how to get there."""

    name: str
    script: str
    definition: Definition = ORDER


STARTS = [
    Start("not confirmed", ""),
    Start("not confirmed, with its record", "record"),
    Start("Pending", "submit"),
    Start("Pending, not due", "submit claim wait"),
    Start("waiting for a service", "submit break"),
    Start("to be undone, waiting for a service", "submit claim on on undo break"),
    Start("claimed", "submit claim"),
    Start("a step is running", "submit claim on"),
    Start("two steps are running", "submit claim address disk", PROVISIONING),
    Start("the last step is running", "submit claim on on on on"),
    Start("the pivot is running", "submit claim on on on on on on", PROVISIONING),
    Start("a claim has expired", "submit claim time"),
    Start("a step is overdue", "submit claim on time"),
    Start("the calls are spent", "submit claim on give_up"),
    Start("Processed", "submit claim on on on on on"),
    Start("Error", "submit claim on fail"),
    Start("to be undone", "submit claim on on undo"),
    Start("an undo was claimed", "submit claim on on undo claim"),
    Start("an undo of nothing was claimed", "submit undo claim"),
    Start("an undo is running", "submit claim on on undo claim on"),
    Start("the last undo is running", "submit claim on undo claim on"),
    Start("an undo is overdue", "submit claim on on undo claim on time"),
    Start("Compensated", "submit claim on undo claim on on"),
    Start("CompensationFailed", "submit claim on on undo claim on undo_fail"),
]


def after(task: Task, *writes: Write) -> tuple[Task, list[Told]]:
    """The task as the model has it behind these writes, one after the other, and what the writers are told."""
    task = deepcopy(task)
    return task, [write.on(task) for write in writes]


async def meet(sessions: TwoSessions, modelled: ModelledTask, one: Write, other: Write) -> list[Told]:
    """Let the other arrive while the one is in the middle of its transaction."""
    first, second = modelled.real.through(*sessions.first), modelled.real.through(*sessions.second)
    with sessions.closed_gate():
        works = [asyncio.create_task(first.do(one))]
        await sessions.stops("first", works[0])
        works.append(asyncio.create_task(second.do(other)))
        await sessions.stops("second", works[1])
    return list(await asyncio.gather(*works))


@pytest.mark.failure(16, 36)
@pytest.mark.demand("B2", "B11", "D5")
@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.name)
async def test_two_writes_at_once_equal_one_behind_the_other(sessions: TwoSessions, start: Start) -> None:
    model = await ModelledTask(sessions, start.definition).follow(start.script)
    names = model.contenders()
    events = len(model.task.events)
    winners = [name for name, write in names.items() if len(after(model.task, write)[0].events) > events]
    for one, other in product(winners, names):
        modelled = await ModelledTask(sessions, start.definition).follow(start.script)
        first, second = modelled.contenders()[one], modelled.contenders()[other]
        changed, told = after(modelled.task, *([first] if second.name in PASS_OVER else [first, second]))
        wanted = [*told, Told("nothing")][:2]
        heard = await meet(sessions, modelled, first, second)
        if one == "claim":  # reads back what it has claimed, which the other may have moved by then
            wanted[0] = heard[0]
        assert (one, other, heard) == (one, other, wanted)
        got, want = modelled.real.picture(), changed.picture()
        assert (one, other, {k: v for k, v in got.items() if v != want[k]}) == (
            one,
            other,
            {k: v for k, v in want.items() if v != got[k]},
        )


@pytest.fixture(autouse=True)
def _empty(sessions: TwoSessions) -> Iterator[None]:
    yield
    sessions.bench.empty()
