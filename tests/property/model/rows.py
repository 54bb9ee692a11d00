"""The rows of the model besides the task's own, and what a writer is told."""

from __future__ import annotations

from dataclasses import dataclass

from domain.definition import Step as StepDefinition
from domain.messages import Json
from domain.states import StepState, UndoState

_S = StepState


@dataclass(frozen=True)
class Told:
    """What a writer is told: how it ends (None: it goes on), the calls that it may make, the result on record."""

    said: str | None = None
    calls: int | None = None
    result: Json | None = None


@dataclass
class Step:
    """A step row. `epoch`: of the attempt that last began it; `overdue`: its deadline has passed."""

    budget: int
    budget_left: int
    undo_budget: int
    undo_budget_left: int
    state: StepState = _S.NOT_STARTED
    epoch: int = 0
    overdue: bool = False
    failures: int = 0
    reserved: int = 0
    gave_up: bool = False
    unknown: bool = False
    generation: int = 0
    completed: bool = False
    result: Json | None = None

    @classmethod
    def of(cls, step: StepDefinition) -> Step:
        """A step that has not begun."""
        undo = step.undo.budget if step.undo else 0
        return cls(step.budget, step.budget, undo, undo)

    @property
    def left(self) -> int:
        """Calls left for what is being done to it."""
        return self.undo_budget_left if self.state is _S.UNDOING else self.budget_left

    def reserve(self, calls: int) -> None:
        """Take calls out of the budget before they are made."""
        self.reserved = min(calls, self.left)
        self.give_back(-self.reserved)

    def give_back(self, calls: int) -> None:
        """Put calls back into the budget that they came from."""
        if self.state is _S.UNDOING:
            self.undo_budget_left += calls
        else:
            self.budget_left += calls

    def grant(self) -> None:
        """It has not failed, and does not pay for what ended its attempt: as many calls as it had reserved are granted.

        They stay reserved, as they may have been made.
        """
        self.give_back(self.reserved)
        if self.state is _S.UNDOING:
            self.undo_budget += self.reserved
        else:
            self.budget += self.reserved

    def finish(self, state: StepState, used: int | None) -> None:
        """It is done, or undone: what was certainly not used returns, and failures are counted from zero again."""
        self.give_back(max(0, self.reserved - used) if used is not None else 0)
        self.state, self.failures, self.gave_up, self.reserved = state, 0, False, 0
        self.completed |= state is _S.COMPLETED

    def refuse(self, state: StepState) -> None:
        """It was refused for good."""
        self.state, self.failures, self.reserved = state, self.failures + 1, 0


@dataclass
class Entry:
    """An entry of the compensation log, which lists steps in the order in which they first began.

    `quarantined`: its undo is to be done once more; `waits`: but not yet. `generation`: of the key of its undo.
    """

    step: str
    state: UndoState = UndoState.LOGGED
    attempts: int = 0
    generation: int = 0
    quarantined: bool = False
    waits: bool = False
