"""What a definition goes through: every step forward and undone, and at each point a kill, at each call a fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chaos.matrix.case_run import CaseRun
from chaos.matrix.scenarios import CLAIMED, call
from domain.definition import Definition, Step
from domain.messages import Json
from domain.states import TaskState

LONGEST_LATE_S = 10.0
"""Steps that may take longer are spared a late answer: a rehearsal is over in minutes."""


@dataclass(frozen=True)
class Case:
    """One task: points at which its worker dies, faults by step, and whether it is undone in the end."""

    name: str
    undo: bool = False
    kills: tuple[str, ...] = ()
    faults: tuple[tuple[Step, dict[str, Any]], ...] = ()

    async def play(self, run: CaseRun, definition: Definition, record: Json) -> None:
        """Play it to the end that it must have."""
        for step, rule in self.faults:
            _fault(run, step, undo=self.undo, **rule)
        pivot = next((s for s in definition.steps if s.pivot), None)
        if self.undo and pivot:  # behind it there is no way back, so it is refused
            _fault(run, pivot, undo=False, kind="refuse")
        await run.submit(record, definition.name)
        if not self.undo:
            await run.reached(TaskState.PROCESSED)
            return
        if pivot is None or definition.refused(pivot) == "error":
            await run.reached(TaskState.ERROR if pivot else TaskState.PROCESSED)
            await run.ask_undo()
        await run.reached(TaskState.COMPENSATED)


def _fault(run: CaseRun, step: Step, *, undo: bool, kind: str, **rule: Any) -> None:
    service, _, method = step.action.partition(".")
    path = f"/{service}/{method}" + "/undo" * undo
    run.fault(service, kind, match={"path": path, "undo": undo}, **rule)


def cases_of(definition: Definition) -> Iterator[Case]:
    """All of them."""
    yield Case("nothing happens")
    for (point,) in CLAIMED:
        yield Case(f"dies {point}", kills=(point,))
    undone = [s for s in definition.steps if s.undo]
    for undo, steps in ((False, definition.steps), (True, undone)):
        word = "undo of " if undo else ""
        for step in steps:
            for (point,) in call(step.name, "undo_" if undo else ""):
                yield Case(f"dies {point}", undo, (point,))
            for what, rule in _faults(step):
                yield Case(f"{word}{step.name}: {what}", undo, faults=((step, rule),))


def _faults(step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
    within_s = step.within.total_seconds()
    yield "its reply is lost", {"kind": "lost_reply", "times": 1}
    yield "it is delivered twice", {"kind": "duplicate", "latency_ms": 50, "times": 1}
    yield "an error before its effect", {"kind": "error", "times": 1}
    yield "an error after its effect", {"kind": "error", "after_effect": True, "times": 1}
    if within_s <= LONGEST_LATE_S:
        yield "it answers too late", {"kind": "latency", "latency_ms": int(within_s * 1000) + 300, "times": 1}
