"""The real state store does what the model says: any writer, at any time, in time or late, once or again.

`HYPOTHESIS_PROFILE=long` explores for minutes, from a new seed each time; a failure says how to repeat it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from devstack.servers.postgres import EmbeddedPostgres
from domain.definition import Definition
from domain.states import TaskState
from store.claims import Hold
from store.database import Database
from testing.databases import Databases
from tests.integration.store_bench import StoreBench, open_store_bench
from tests.moves import may_step
from tests.property.definitions import DEFINITIONS
from tests.property.draws import any_of_run, next_of_run, of_dispatcher, of_others, of_person, of_time
from tests.property.model import Write
from tests.property.model.rows import Told
from tests.property.model.supervisor import Decision, decide
from tests.property.model.task import Task
from tests.property.system import StoreUnderTest, Twice

T = TypeVar("T")
PROFILES = {
    # without the phase that explains failures, which traces every line
    "ci": settings(
        max_examples=12, stateful_step_count=50, derandomize=True, deadline=None, phases=[Phase.generate, Phase.shrink]
    ),
    "long": settings(max_examples=2_000, stateful_step_count=80, deadline=None, print_blob=True),
}
NAME = os.environ.get("HYPOTHESIS_PROFILE", "ci")
PROFILE = PROFILES[NAME]


class Setting:
    """The state store, and the loop that its connections live in, so that a rule can be an ordinary function."""

    def __init__(self, bench: StoreBench, twice: tuple[Twice, Twice], loop: asyncio.AbstractEventLoop) -> None:
        self.bench, self.twice, self._loop = bench, twice, loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it."""
        return self._loop.run_until_complete(work)


@pytest.fixture(scope="module")
def setting(templates: EmbeddedPostgres) -> Iterator[Setting]:
    """The state store on databases of this file."""
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def opened(databases: Any) -> Setting:
        bench = await stack.enter_async_context(open_store_bench(databases, size=2))
        supervisor = await stack.enter_async_context(Database(databases.supervisor, name="state store", size=2))
        for definition in DEFINITIONS.values():
            await bench.admission.publish(definition)
        return Setting(bench, (Twice(bench.database), Twice(supervisor)), loop)

    with Databases(templates) as databases:
        yield loop.run_until_complete(opened(databases))
        loop.run_until_complete(stack.aclose())
    loop.close()


def when(check: Callable[[StoreMachine], bool]) -> Callable[[Any], Any]:
    """The rule applies while there is a task of which this holds."""
    return precondition(lambda self: not self.task.gone and check(self))


class StoreMachine(RuleBasedStateMachine):
    """One task, written to by everybody who may; a twin of it in plain Python says what must come of it."""

    def __init__(self, setting: Setting, definition: Definition) -> None:
        super().__init__()
        self.setting = setting
        self._turn_to(Task(f"t-{uuid4().hex[:12]}", definition))

    def _turn_to(self, task: Task) -> None:
        self.task = task
        self.real = StoreUnderTest(self.setting.bench, task.task_id, task.definition)
        self.twice = self.real.through(*self.setting.twice)
        self.holds: dict[str, Hold] = {}
        self.past: list[Write] = []
        self.decisions: list[Decision] = []

    # --- the two sides ----------------------------------------------------------------------------------------

    def write(self, write: Write, *, lost: bool = False) -> Told:
        """Let a writer do its work on both sides, which must tell it the same. `lost`: its first acknowledgement is."""
        self.past.append(write)
        before = {n: s.state for n, s in self.task.steps.items()}
        wanted = write.on(self.task)
        assert all(may_step(before[n], s.state) for n, s in self.task.steps.items())
        told = self.setting.run((self.twice if lost else self.real).do(write))
        assert told == wanted or (lost and write.name == "recover")  # what it recovered is not told twice
        return wanted

    @property
    def hold(self) -> Hold:
        """The run that holds the task."""
        return self.holds[self.task.attempt]

    @property
    def is_started(self) -> bool:
        """Whether a run holds the task."""
        return self.task.held and self.task.attempt in self.holds

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        assert self.real.picture() == self.task.picture()

    def teardown(self) -> None:
        self.setting.bench.empty()

    # --- rules ------------------------------------------------------------------------------------------------

    @initialize(writes=st.sampled_from([3, 3, 3, 2, 1]))
    def submit(self, writes: int) -> None:
        """The first delivery, which may die between its three writes."""
        self.setting.run(self.real.admit())
        if writes > 1:
            self.write(Write("submit", {"same": True}) if writes == 3 else Write("write_record", {}))

    @when(lambda self: self.task.state in (TaskState.PROCESSED, TaskState.COMPENSATED))
    @rule()
    def submit_another(self) -> None:
        """There is little that can still happen to this one."""
        old = self.task
        self._turn_to(Task(f"t-{uuid4().hex[:12]}", old.definition, broken=old.broken))
        self.submit(writes=3)

    @precondition(lambda self: self.task.gone)
    @rule()
    def start_over(self) -> None:
        """A submission was removed, and comes again."""
        old = self.task
        self._turn_to(Task(old.task_id, old.definition, abandoned=True, alerts=old.alerts, broken=old.broken))
        self.submit(writes=3)

    @when(lambda self: self.is_started or (self.task.is_claimable and self.task.due))
    @rule(writes=st.integers(1, 10))
    def go_on(self, writes: int) -> None:
        """A dispatcher and a run do what is due, without any fault."""
        for _ in range(writes):
            if self.is_started:
                self.write(next_of_run(self.task, self.hold))
            elif self.task.is_claimable and self._claim(Write("claim", {})) == "nothing":
                return

    @when(lambda self: self.is_started)
    @rule(data=st.data(), lost=st.booleans())
    def run(self, data: st.DataObject, lost: bool) -> None:
        self.write(any_of_run(data.draw, self.task, self.hold), lost=lost)

    @when(lambda self: self.is_started and self.task.run_id == self.hold.run_id)
    @rule(lost=st.booleans())
    def reset_run(self, lost: bool) -> None:
        """A run that was made by *reset* goes on as if it were the one that has bound itself."""
        self.write(next_of_run(self.task, replace(self.hold, run_id="made by reset")), lost=lost)

    @when(lambda self: self.is_started)
    @rule(lost=st.booleans())
    def forged_run(self, lost: bool) -> None:
        """Somebody has started a run by hand under the attempt's id, with an input of his own."""
        self.write(next_of_run(self.task, replace(self.hold, run_id="by hand", nonce="made up")), lost=lost)

    @when(lambda self: any("hold" in w.terms for w in self.past))
    @rule(data=st.data(), lost=st.booleans())
    def past_run(self, data: st.DataObject, lost: bool) -> None:
        """Work is run twice, or a run that lost its hold wakes up."""
        self.write(data.draw(st.sampled_from([w for w in self.past if "hold" in w.terms])), lost=lost)

    @when(lambda self: self.task.held)
    @rule(lost=st.booleans())
    def worker_dies(self, lost: bool) -> None:
        """Nobody writes until every deadline has passed, and the Supervisor has seen it."""
        self.write(Write("time_passes", {"steps": [n for n, s in self.task.steps.items() if s.epoch]}))
        self.supervisor_decides(outage=False)
        self.supervisor(newest=True, lost=lost)

    @when(lambda self: self.task.held or not self.task.due)
    @rule(data=st.data())
    def time(self, data: st.DataObject) -> None:
        self.write(of_time(data.draw, self.task))

    @when(lambda self: self.task.late)
    @rule(outage=st.sampled_from([False, False, True]))
    def supervisor_decides(self, outage: bool) -> None:
        decision = decide(self.task, outage=outage)
        assert self.setting.run(self.real.decide(outage=outage)) == decision
        self.decisions.append(decision)

    @when(lambda self: bool(self.decisions))
    @rule(newest=st.booleans(), lost=st.booleans())
    def supervisor(self, newest: bool, lost: bool) -> None:
        """Carry out a decision, old or new."""
        decision = self.decisions[-1 if newest else 0]
        if self.write(Write("recover", {"decision": decision}), lost=lost).said == "recovered" and decision.delay_s:
            self.real.wait_is(decision.delay_s, longer=not self.task.may_be_undone_now)

    @when(lambda self: True)
    @rule(data=st.data(), lost=st.booleans())
    def person(self, data: st.DataObject, lost: bool) -> None:
        self.write(of_person(data.draw, self.task, self.holds), lost=lost)

    @when(lambda self: not self.past or self.past[-1].name not in ("submit", "breaker", "late_answer"))
    @rule(data=st.data())
    def others(self, data: st.DataObject) -> None:
        self.write(of_others(data.draw, self.task, self.holds))

    @when(lambda self: True)
    @rule(data=st.data())
    def dispatcher(self, data: st.DataObject) -> None:
        self._claim(of_dispatcher(data.draw, self.task))

    def _claim(self, write: Write) -> str | None:
        """Let a dispatcher write; it starts a run for a claim."""
        said = self.write(write).said
        if self.task.held and said == self.task.attempt:
            self.holds[said] = self.task.started
        return said


@pytest.mark.failure(35, 38)
@pytest.mark.demand("B2", "B4", "B11", "D5", "E1", "E3", "F2", "F3", "F11")
@pytest.mark.timeout(300 if NAME == "ci" else 0)
@pytest.mark.parametrize("definition", DEFINITIONS)
def test_store_does_what_the_model_says_whoever_writes_whenever(setting: Setting, definition: str) -> None:
    run_state_machine_as_test(lambda: StoreMachine(setting, DEFINITIONS[definition]), settings=PROFILE)
