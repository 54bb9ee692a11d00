"""What passes between the Scheduler, the Agents, the Supervisor and the store: frozen pydantic models.

Durations are seconds as floats on the wire (`*_s`), money is integer minor units, bodies are JSON objects.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from domain.states import StepState, TaskState

Json = dict[str, Any]

MOST_PAUSE_S = 86_400.0
"""Longest pause that a service's wish makes; one that asks for more is asked again then."""

Pause = Annotated[float, Field(ge=0, le=MOST_PAUSE_S, allow_inf_nan=False)]


class Message(BaseModel):
    """Base of every message: immutable; unknown fields are ignored, so that a newer sender is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# --- an Agent's request and what came of it -------------------------------------------------------------------


class AgentRequest(Message):
    """One piece of work for an Agent: the request, the allowance, a stable key, a fencing token.

    Attributes:
        keys: The idempotency key; for an undo the keys of all generations of the original, oldest first.
        generation: Of an undo: the generation of its own key.
        epoch: Fencing token; a service refuses a lower one than it has seen for the task.
        calls: Calls reserved; no more are sent.
        run_id: Temporal run that made the reservation; a queued Agent refuses to act for another run.
        unknown: An earlier call with this key may have had its effect: ask by key before sending again.
        key_age_s: Seconds since a call may first have been sent whose effect may stand; of an undo: of its original.
        granted_at: From when the time of a queued Agent counts, by Temporal's clock.
    """

    task_id: str
    step: str
    action: str
    body: Json
    keys: list[str]
    epoch: int
    calls: int
    run_id: str
    undo: bool = False
    generation: int = 0
    unknown: bool = False
    key_age_s: float = 0.0
    granted_at: datetime | None = None

    @property
    def service(self) -> str:
        """Name of the service that is asked."""
        return self.action.partition(".")[0]

    def granted(self, grant: Grant, run_id: str) -> AgentRequest:
        """The same request under a reservation."""
        return self.model_copy(
            update={
                "calls": grant.calls,
                "run_id": run_id,
                "unknown": grant.unknown,
                "key_age_s": grant.key_age_s,
                "body": self.body if grant.body is None else grant.body,
                "granted_at": grant.granted_at,
            }
        )


class Completed(Message):
    """The service did it. `calls` of the reservation were used; None: not known, so nothing of it returns."""

    kind: Literal["completed"] = "completed"
    result: Json
    calls: int | None


class Refused(Message):
    """A permanent fault: the service will never do it.

    `unknown_before`: a call of this attempt or an earlier one may have been done all the same; None: as is on record,
    where this attempt sent none.
    """

    kind: Literal["refused"] = "refused"
    code: str
    message: str
    unknown_before: bool | None


class GaveUp(Message):
    """The allowance, or the time for another call, was spent before the deadline.

    Attributes:
        unknown: A call may have been done.
        sent: Calls of the reservation that were sent; None: not known, so nothing of it returns.
        retry_after_s: How long the service wishes not to be called.
    """

    kind: Literal["gave_up"] = "gave_up"
    cause: str
    unknown: bool = True
    sent: int | None = None
    retry_after_s: Pause = 0.0


class TimedOut(Message):
    """The deadline came first: no new side effect was started after it. `called`: the service was called."""

    kind: Literal["timed_out"] = "timed_out"
    cause: str
    called: bool = False


class Overtaken(Message):
    """The service has seen a newer epoch, or the request is of another run: somebody else moved the task.

    `answered`: the service said so; not where its Agent did, and sent nothing.
    """

    kind: Literal["overtaken"] = "overtaken"
    cause: str
    answered: bool = True


class StoodDown(Message):
    """The Agent can't go on for reasons that are not the task's (a draining worker).

    Attributes:
        sent: Calls of the reservation that may have reached the service; None: not known, so nothing of it returns.
        lacking: The part of a deployment that lacks something, so that an alert says so; empty: none does.
        unreachable: The service could not be reached; its breaker counts that, and tells of it.
    """

    kind: Literal["stood_down"] = "stood_down"
    cause: str
    sent: int | None = None
    retry_after_s: Pause = 0.0
    lacking: str = ""
    unreachable: bool = False

    @classmethod
    def for_want(cls, part: str, of: str, epoch: int, *, unreachable: bool = False) -> StoodDown:
        """Nothing was sent, for want of something that a part lacks; the later the attempt, the longer the pause."""
        pause_s, lacking = min(60.0, 2.0 * epoch), "" if unreachable else part
        return cls(cause=f"{part}: {of}", sent=0, retry_after_s=pause_s, lacking=lacking, unreachable=unreachable)


Outcome = Annotated[Completed | Refused | GaveUp | TimedOut | Overtaken | StoodDown, Field(discriminator="kind")]


class OutcomeBox(Message):
    """An outcome as one message, for wires that need a model at the top."""

    outcome: Outcome


# --- a run of the Scheduler -----------------------------------------------------------------------------------


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
    undo_log: list[UndoView] = []


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
    """

    step: str
    within_s: float
    calls: int
    queued: bool = False
    undo: UndoCall | None = None


class Grant(Message):
    """A reservation: so many calls, so much time; `unknown` and `key_age_s` as in `AgentRequest`.

    `within_s` is what was left `after_s` after the activity that tells of it had begun: that is at `granted_at`, or
    later, by Temporal's clock, which only the workflow knows.
    `body`: of an undo, its request from the compensation log.
    """

    calls: int
    within_s: float
    unknown: bool = False
    key_age_s: float = 0.0
    body: Json | None = None
    after_s: float = 0.0
    granted_at: datetime | None = None

    def begun_at(self, began: datetime) -> Grant:
        """The same, told of by an activity that began at this time or later."""
        return self.model_copy(update={"granted_at": began + timedelta(seconds=self.after_s)})


class StepWork(Message):
    """One step of one attempt, for the bookkeeping activities.

    Attributes:
        nonce: Of the claim that started the attempt.
        request: What the Agent is to do; None where only a beginning or an outcome is written.
        begin: Terms of this step, should it have to be begun (again).
        outcome: What the queued Agent reported; None before the call, and for inline steps.
        then: The one step that begins in the same transaction as this one completes, if there is one.
        on_refused: What follows a permanent fault: `undo` or `error`.
    """

    task_id: str
    epoch: int
    nonce: str = ""
    step: str
    undo: bool
    begin: BeginStep
    request: AgentRequest | None = None
    outcome: Outcome | None = None
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
    steps: dict[str, StepState] = {}
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


# --- undo on request ------------------------------------------------------------------------------------------


class SignalRef(Message):
    """A signal that a run has got: which run, and number so many of those that ask for undo."""

    workflow_id: str
    run_id: str
    number: int


class UndoRequest(Message):
    """Ask for the undo of a whole task.

    `holder` guards it: only if that attempt still holds the task; `definition`: only if it is of that definition.
    `sender`: who sent the signal by which it came, as Temporal knows it; `heard`: that signal, if this is to be asked.
    """

    task_id: str
    requester: str
    reason: str
    holder: str | None = None
    definition: str | None = None
    sender: str = ""
    heard: SignalRef | None = None


class UndoVerdict(Message):
    """Answer to an undo request.

    Attributes:
        verdict: `accepted`; `already` (being undone, or undone); `past_pivot`; `not_found`; `not_holder`.
        state: State of the task afterwards; None if there is no such task.
    """

    verdict: Literal["accepted", "already", "past_pivot", "not_found", "not_holder"]
    task_id: str
    state: TaskState | None = None
    message: str = ""
