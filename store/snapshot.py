"""A task as a transaction left it: what a transition is judged by when it changed nothing."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from domain.attempts import RunInput, StepView, UndoView
from domain.messages import Json
from domain.states import StepState, TaskState


class StepRow(BaseModel):
    """A step row. `time_left_s` is negative once its deadline has passed, None before it ever began.

    `unknown`: an earlier call may have had its effect. Of the step, or of its undo in a task that is being undone:
    `calls_left` of its budget; `blocked`: the breaker of its service keeps the task from it. `quarantined`: its undo is
    to be done once more, but not yet.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    state: StepState
    epoch: int
    pivot: bool
    calls_left: int
    reserved: int
    reservation: str | None
    key_generation: int
    key_age_s: float
    unknown: bool
    blocked: bool
    quarantined: bool
    time_left_s: float | None


class Snapshot(BaseModel):
    """A task row with its steps in definition order and its open undo log, last begun first.

    `result`, `body`: recorded result, and undo's request, of the one step that was done or is begun. `original`: what
    the step returned whose undo is begun, where that is wanted and somebody was told.
    """

    model_config = ConfigDict(frozen=True)

    task_id: str
    definition: str
    version: int
    state: TaskState
    locked_by: str | None
    run_id: str | None
    claim_nonce: str | None
    epoch: int
    submitter: str
    record_digest: str
    waiting: bool
    time_left_s: float | None
    steps: list[StepRow]
    undo_log: list[UndoView]
    result: Json | None = None
    body: Json | None = None
    original: Json | None = None

    def step(self, name: str) -> StepRow:
        """The step of that name; KeyError if the task has none."""
        found = next((s for s in self.steps if s.name == name), None)
        if found is None:
            raise KeyError(f"task {self.task_id} has no step {name!r}")
        return found

    def as_run(self, record: Json) -> RunInput:
        """Input of the run that carries out what was claimed."""
        undo = self.state is TaskState.COMPENSATING
        return RunInput(
            task_id=self.task_id,
            definition=self.definition,
            version=self.version,
            epoch=self.epoch,
            nonce=self.claim_nonce or "",
            undo=undo,
            record=record,
            steps=[StepView(name=s.name, state=s.state, key_generation=s.key_generation) for s in self.steps],
            undo_log=self.undo_log if undo else [],
        )
