"""What the checks look at: everything on record about one task, read at one instant, as frozen models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from audit.breakers import Breakers
from audit.evidence import Call, Effect, Frozen, Ledger, Run, SubmissionReply
from domain.ids import attempt_id, idempotency_key
from domain.messages import Json
from domain.states import EventKind, StepState, TaskState, UndoState


class TaskRow(Frozen):
    """A row of `task`."""

    task_id: str
    definition: str
    version: int
    state: TaskState
    confirmed: bool
    locked_by: str | None
    run_id: str | None
    epoch: int
    complete_by: datetime | None
    not_before: datetime
    failure_count: int
    record_digest: str
    submitter: str
    updated_at: datetime
    last_event: int
    last_seq: int
    error: Json | None

    @property
    def attempt(self) -> str:
        """Workflow id of its newest attempt."""
        return attempt_id(self.definition, self.task_id, self.epoch)


class StepRow(Frozen):
    """A row of `step`."""

    name: str
    state: StepState
    epoch: int
    failure_count: int
    budget: int
    budget_left: int
    undo_budget: int
    undo_budget_left: int
    reserved: int
    complete_by: datetime | None
    key_generation: int
    completed_at: datetime | None
    result: Json | None

    @property
    def has_begun(self) -> bool:
        """Whether a call for it may ever have been made."""
        return self.state is not StepState.NOT_STARTED


class UndoEntry(Frozen):
    """A row of `compensation`."""

    seq: int
    step: str
    state: UndoState
    request: Json | None
    undone_at: datetime | None


class EventRow(Frozen):
    """A row of `event`. A kind that this release does not know is kept as it is: it may be a newer one's."""

    number: int
    kind: Annotated[EventKind | str, Field(union_mode="left_to_right")]
    state_from: TaskState | None
    state_to: TaskState
    epoch: int
    actor: str
    detail: Mapping[str, Any]
    at: datetime

    @property
    def keeps_state(self) -> bool:
        """Whether it left the task's state as it was."""
        return self.state_from is self.state_to


class LaterAnswer(Frozen):
    """A row of `inbox`. `kind`: completed or failed."""

    key: str
    kind: str
    result: Json | None = None
    received_at: datetime


class AlertRow(Frozen):
    """A row of `alert`."""

    kind: str


class DefinitionRow(Frozen):
    """What a definition's policies say of its steps, and whether a live worker has it."""

    policies: Mapping[str, Any]
    has_live_worker: bool

    def has_undo(self, step: str) -> bool:
        """Whether the step has an undo."""
        return self._step(step).get("undo") is not None

    def service(self, step: str, *, undo: bool = False) -> str:
        """The remote service that does the step, or undoes it; empty if none does."""
        return str(self._step(step).get("undo" if undo else "action") or "").partition(".")[0]

    def after(self, step: str) -> Sequence[str]:
        """The steps that must be done before it."""
        found: Sequence[str] = self._step(step).get("after", ())
        return found

    def complete_within(self, step: str) -> timedelta | None:
        """The time that it may take; None if the policies do not say."""
        seconds = self._step(step).get("within_s")
        return None if seconds is None else timedelta(seconds=seconds)

    def _step(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.policies.get("steps", {}).get(name, {})
        return found


class Tolerances(Frozen):
    """How late is too late.

    Attributes:
        detection_delay: A held task may be overdue by so much before the Supervisor must have found it.
        claim_delay: A task may be due by so much before a live worker must have claimed it.
        network_delay: A call may reach its service by so much after it was sent: what a busy machine takes; where
            messages are held back on purpose, whoever does so says for how long.
        clock_skew: A service's clock may be behind the state store's by so much.
    """

    detection_delay: timedelta = timedelta(seconds=20)
    claim_delay: timedelta = timedelta(minutes=5)
    network_delay: timedelta = timedelta(seconds=3)
    clock_skew: timedelta = timedelta(seconds=1)


class AuditedTask(Frozen):
    """One task.

    Attributes:
        later_answers: To the present keys of its steps, in the order of their arrival.
        digest: That of its business record; None if there is none.
        definition: None if it is not on record.
        ledgers: By service; empty where they were not read, or the task moved after they were.
        runs: Of its attempts. runs_asked_at: When Temporal was asked for them; None where it was not.
        replies: To its submitter; None where the log of that submitter is not at hand.
        breakers: What the circuit breakers of all services did.
        open_breakers: Services that nobody calls just now; a task that needs one of them waits with reason.
        outages: Until when supervision or the store was out, each time that a sweep found so.
        now: The database's clock when the rows were read.
    """

    model_config = ConfigDict(extra="forbid")

    row: TaskRow
    steps: Sequence[StepRow]
    undo_log: Sequence[UndoEntry]
    events: Sequence[EventRow]
    alerts: Sequence[AlertRow]
    later_answers: Sequence[LaterAnswer]
    digest: str | None
    definition: DefinitionRow | None
    ledgers: Mapping[str, Ledger] = Field(default_factory=dict)
    runs: Sequence[Run] = ()
    runs_asked_at: datetime | None = None
    replies: Sequence[SubmissionReply] | None = None
    breakers: Breakers
    open_breakers: frozenset[str]
    outages: Sequence[datetime]
    now: datetime
    tolerances: Tolerances = Field(default_factory=Tolerances)

    @property
    def effects(self) -> list[Effect]:
        """At all services."""
        return [e for ledger in self.ledgers.values() for e in ledger.effects]

    @property
    def tombstones(self) -> list[Effect]:
        """At all services."""
        return [t for ledger in self.ledgers.values() for t in ledger.tombstones]

    @property
    def calls(self) -> list[Call]:
        """At all services, without questions by key."""
        return [c for ledger in self.ledgers.values() for c in ledger.calls]

    @property
    def probes(self) -> list[Call]:
        """Questions by key, at all services."""
        return [p for ledger in self.ledgers.values() for p in ledger.probes]

    def has_undo(self, step: str) -> bool:
        """Whether a step has an undo, by the policies on record or by the undo log."""
        return self.entry(step) is not None or (self.definition is not None and self.definition.has_undo(step))

    def entry(self, step: str) -> UndoEntry | None:
        """The step's entry in the undo log, if it has one."""
        return next((e for e in self.undo_log if e.step == step), None)

    def answer_to(self, step: StepRow) -> LaterAnswer | None:
        """The first of the answers that came later to the step's present key."""
        key = idempotency_key(self.row.task_id, step.name, step.key_generation)
        return next((a for a in self.later_answers if a.key == key), None)

    def complete_within(self, step: str) -> timedelta | None:
        """The time that a step may take; None if no policy on record says."""
        return self.definition.complete_within(step) if self.definition else None

    @property
    def waits_for_a_breaker(self) -> bool:
        """Whether some service that it may need next is not called just now."""
        needed = {self.definition.service(s.name) for s in self.steps} if self.definition else set()
        return bool(needed & self.open_breakers)

    @property
    def repaired_steps(self) -> set[str]:
        """The steps whose undo a person skipped or closed by hand at some time, in whatever order."""
        return {str(e.detail.get("step")) for e in self.events if e.kind is EventKind.UNDO_REPAIRED}

    def is_closed_by_hand(self, step: str) -> bool:
        """Whether a person closed the step's undo, with evidence: what stands then is that person's word."""
        entry = self.entry(step)
        return entry is not None and entry.state is UndoState.CLOSED_BY_HAND
