"""What passes between the claim, the run of an attempt and the writes at its boundaries."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from domain.messages import Grant, Json, Message, Outcome, StepRequest
from domain.states import StepState


class StepView(Message):
    """A step as the claim found it."""

    name: str
    state: StepState
    key_generation: int


class UndoView(Message):
    """An entry of the compensation log that is still to be undone, as the claim found it; its request stays there.

    `generation`: of the undo's own key.
    """

    step: str
    action: str
    generation: int = 0


class RunInput(Message):
    """Input of an attempt: what was claimed, with the business record that the dispatcher read.

    It is bounded by construction: results of earlier steps and requests of undos stay in the store until they are used.

    Attributes:
        nonce: Known to the claim and the run that it started alone: by it the run binds itself to the task.
        steps: Every step in definition order.
        undo_log: What is left to undo, last begun first; empty for a forward run.
    """

    task_id: str
    definition: str
    version: int
    epoch: int
    nonce: str = ""
    undo: bool
    record: Json
    steps: list[StepView]
    undo_log: list[UndoView] = Field(default_factory=list)


class UndoCall(Message):
    """What the compensation log needs to undo a step: the action and its request."""

    action: str
    body: Json


class BeginStep(Message):
    """Terms on which a step, or the undo of one, begins.

    Attributes:
        within_s: Complete-within allowance.
        calls: Calls to reserve, at most; what is left of the step's budget bounds it.
        queued: Its Agent is asked by the run, which needs the reservation; that of an inline step stays in the process.
        undo: Written to the compensation log in the same transaction; None if there is nothing to undo.
        original: Of an undo: whether its Agent wants to know what the step returned.
    """

    step: str
    within_s: float
    calls: int
    queued: bool = False
    undo: UndoCall | None = None
    original: bool = False


class AttemptRef(Message):
    """Who writes: an attempt, by the number and the nonce of the claim that started it."""

    task_id: str
    epoch: int
    nonce: str = ""
    undo: bool


class StepWork(AttemptRef):
    """One step of one attempt, or the undo of one, that is to be done.

    Attributes:
        begin: Terms of this step, should it have to be begun (again).
        then: The one step that begins in the same transaction as this one completes, if there is one.
        on_refused: What follows a permanent fault: `undo` or `error`.
    """

    step: str
    request: StepRequest
    begin: BeginStep
    then: BeginStep | None = None
    on_refused: Literal["undo", "error"] = "error"

    def came_to(self, outcome: Outcome) -> StepOutcome:
        """What is to be written of it, now that its Agent has answered."""
        terms = dict(self) | {"service": self.request.service, "outcome": outcome}
        return StepOutcome(**{name: terms[name] for name in StepOutcome.model_fields})


class StepOutcome(AttemptRef):
    """What came of a step; `service`: whose breaker is told of it, if one was asked. The rest as in `StepWork`."""

    step: str
    outcome: Outcome
    service: str | None = None
    then: BeginStep | None = None
    on_refused: Literal["undo", "error"] = "error"


class AttemptEnd(StrEnum):
    """How an attempt ends. All but the first two are typed failures of the run, so that the UI tells the truth."""

    PROCESSED = "Processed"
    COMPENSATED = "Compensated"
    PERMANENT_FAULT = "PermanentFault"
    UNDO_FAILED = "UndoFailed"
    UNDO_REQUESTED = "UndoRequested"
    DEADLINE_PASSED = "DeadlinePassed"
    GAVE_UP = "GaveUp"
    SUPERSEDED = "Superseded"
    RELEASED = "Released"
    NOT_RECORDED = "NotRecorded"


class WriteResult(Message):
    """What the store answered to a bookkeeping write.

    Attributes:
        end: None: the attempt goes on. Otherwise how it ends.
        steps: Where it ends: state of each step on record, in order.
        result: Recorded result of the step, once Completed.
        grant: Reservation for the step that was begun (`then`, or the step itself if it was only begun).
        answer: An answer that came in before the call, for a step that answers later.
    """

    end: AttemptEnd | None = None
    cause: str = ""
    steps: dict[str, StepState] = Field(default_factory=dict)
    result: Json | None = None
    grant: Grant | None = None
    answer: Outcome | None = None


class ResultsRequest(Message):
    """Steps of a task whose recorded results an attempt needs."""

    task_id: str
    steps: list[str]


class Results(Message):
    """Recorded results by step: as many of those that were wanted as one message should carry, but one at least."""

    results: dict[str, Json]
