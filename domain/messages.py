"""What passes between the Scheduler, the Agents, the Supervisor and the store: frozen pydantic models.

Durations are seconds as floats on the wire (`*_s`), money is integer minor units, bodies are JSON objects.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Json = dict[str, Any]

MOST_PAUSE_S = 86_400.0
"""Longest pause that a service's wish makes; one that asks for more is asked again then."""

Pause = Annotated[float, Field(ge=0, le=MOST_PAUSE_S, allow_inf_nan=False)]


class Message(BaseModel):
    """Base of every message: immutable; unknown fields are ignored, so that a newer sender is understood."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class StepRequest(Message):
    """What a step, or the undo of one, asks of its Agent: the request, a stable key, a fencing token.

    Attributes:
        keys: The idempotency key; for an undo the keys of all generations of the original, oldest first.
        generation: Of an undo: the generation of its own key.
        epoch: Fencing token; a service refuses a lower one than it has seen for the task.
    """

    task_id: str
    step: str
    action: str
    body: Json
    keys: list[str]
    epoch: int
    undo: bool = False
    generation: int = 0

    @property
    def service(self) -> str:
        """Name of the service that is asked."""
        return self.action.partition(".")[0]

    def granted(self, grant: Grant, run_id: str) -> AgentRequest:
        """The request under a reservation, which that run has made."""
        body = self.body if grant.body is None else grant.body
        terms = grant.model_dump(include={"calls", "unknown", "key_age_s", "granted_at", "original"})
        return AgentRequest(**{**self.model_dump(), **terms, "body": body, "run_id": run_id})


class AgentRequest(StepRequest):
    """One piece of work for an Agent, and its allowance.

    Attributes:
        calls: Calls reserved; no more are sent.
        run_id: Temporal run that made the reservation; a queued Agent refuses to act for another run.
        unknown: An earlier call with this key may have had its effect: ask by key before sending again.
        key_age_s: Seconds since a call may first have been sent whose effect may stand; of an undo: of its original.
        granted_at: From when the time of a queued Agent counts, by Temporal's clock.
        original: Of an undo: what its step returned, as far as anybody was told, where its Agent wants to know.
    """

    calls: int
    run_id: str
    unknown: bool = False
    key_age_s: float = 0.0
    granted_at: datetime | None = None
    original: Json | None = None


class Completed(Message):
    """The service did it. `calls` of the reservation were used; None: not known, so nothing of it returns."""

    kind: Literal["completed"] = "completed"
    result: Json
    calls: int | None


class Failed(Message):
    """A permanent fault: the service will never do it.

    `unknown_before`: a call of this attempt or an earlier one may have been done all the same; None: as is on record,
    where this attempt sent none.
    """

    kind: Literal["failed"] = "failed"
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
        unreachable: The service could not be reached, or does not let us in; its breaker counts that, and tells of it.
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


Outcome = Annotated[Completed | Failed | GaveUp | TimedOut | Overtaken | StoodDown, Field(discriminator="kind")]


class OutcomeBox(Message):
    """An outcome as one message, for wires that need a model at the top."""

    outcome: Outcome


class Grant(Message):
    """A reservation: so many calls, so much time; `unknown` and `key_age_s` as in `AgentRequest`.

    `within_s` is what was left `after_s` after the activity that tells of it had begun: that is at `granted_at`, or
    later, by Temporal's clock, which only the workflow knows.
    `body`: of an undo, its request from the compensation log; `original`: as in `AgentRequest`.
    """

    calls: int
    within_s: float
    unknown: bool = False
    key_age_s: float = 0.0
    body: Json | None = None
    original: Json | None = None
    after_s: float = 0.0
    granted_at: datetime | None = None

    def begun_at(self, began: datetime) -> Grant:
        """The same, told of by an activity that began at this time or later."""
        return self.model_copy(update={"granted_at": began + timedelta(seconds=self.after_s)})
