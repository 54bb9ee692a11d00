"""How things stand at one moment of the demo: the state store's view beside that of the services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from devstack.demo.services import SimulatorControl, Tally
from domain.states import EventKind, StepState, TaskState
from store.reads import Reads
from store.rows import Event, Step, Task

_AT_WORK = {StepState.RUNNING, StepState.UNDOING}


@dataclass(frozen=True)
class Moment:
    """Tasks by id, each with its steps in order; events by task and number; what is in the services' ledgers."""

    tasks: Sequence[Task]
    steps: Sequence[Step]
    events: Sequence[Event]
    tally: Tally

    @cached_property
    def _steps(self) -> dict[str, list[Step]]:
        found: dict[str, list[Step]] = {t.task_id: [] for t in self.tasks}
        for step in self.steps:
            found[step.task_id].append(step)
        return found

    @cached_property
    def calls(self) -> Counter[tuple[str, str, bool]]:
        """Calls that the services received, by task, step and whether it was for the undo."""
        return self.tally.calls()

    def steps_of(self, task: Task) -> list[Step]:
        """Steps of a task, in order."""
        return self._steps[task.task_id]

    def step_at_work(self, task: Task) -> str:
        """Names of the steps that are being done or undone."""
        if task.state.is_settled:
            return ""
        return ", ".join(s.name for s in self.steps_of(task) if s.state in _AT_WORK)

    def calls_of(self, task: Task) -> int:
        """Calls for a task that the services received, forward and undo."""
        return sum(n for (task_id, _, _), n in self.calls.items() if task_id == task.task_id)

    def budget_of(self, task: Task) -> int:
        """Calls that were granted to a task in all: its steps', and the undo of those that were undone."""
        undone = (StepState.UNDOING, StepState.UNDONE, StepState.UNDO_FAILED)
        return sum(s.budget + (s.undo_budget if s.state in undone else 0) for s in self.steps_of(task))

    def recoveries_of(self, task: Task) -> int:
        """How often the Supervisor took a task out of the hands of an attempt that expired."""
        return sum(e.kind is EventKind.EXPIRED for e in self.events if e.task_id == task.task_id)

    def settled(self) -> list[Task]:
        """Tasks that nothing moves any more."""
        return [t for t in self.tasks if t.state.is_settled]

    def in_state(self, *states: TaskState) -> list[Task]:
        """Tasks in one of these states."""
        return [t for t in self.tasks if t.state in states]


async def look(reads: Reads, control: SimulatorControl, task_ids: Sequence[str]) -> Moment:
    """How these tasks stand now. The ledgers are read last, so they are never behind the store."""
    tasks = await reads.tasks(task_ids)
    return Moment(
        tasks=sorted(tasks, key=lambda t: t.task_id),
        steps=await reads.steps(task_ids),
        events=await reads.events(task_ids),
        tally=await control.tally(),
    )


def is_held_by(task: Task, pid: int) -> bool:
    """Whether the worker process `pid` holds a task now."""
    return task.locked_by is not None and f":{pid}:" in (task.worker or "")
