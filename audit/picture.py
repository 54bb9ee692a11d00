"""What the checks look at: everything on record about one task, read at one instant, as frozen models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from domain.ids import attempt_id
from domain.states import EventKind, StepState, TaskState, UndoState


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True, extra="ignore")


class TaskView(_Frozen):
    """A row of `task`."""

    task_id: str
    definition: str
    version: int
    state: TaskState
    locked_by: str | None
    run_id: str | None
    epoch: int
    complete_by: datetime | None
    not_before: datetime
    record_digest: str
    updated_at: datetime
    last_event: int
    last_seq: int

    @property
    def attempt(self) -> str:
        """Workflow id of its newest attempt."""
        return attempt_id(self.definition, self.task_id, self.epoch)


class StepView(_Frozen):
    """A row of `step`."""

    name: str
    state: StepState
    epoch: int
    budget: int
    budget_left: int
    undo_budget: int
    undo_budget_left: int
    reserved: int

    @property
    def has_begun(self) -> bool:
        """Whether a call for it may ever have been made."""
        return self.state is not StepState.NOT_STARTED


class EntryView(_Frozen):
    """A row of `compensation`."""

    seq: int
    step: str
    state: UndoState
    undone_at: datetime | None


class EventView(_Frozen):
    """A row of `event`."""

    number: int
    kind: EventKind
    state_from: TaskState | None
    state_to: TaskState
    epoch: int
    actor: str
    detail: Mapping[str, Any]


class AlertView(_Frozen):
    """A row of `alert`."""

    kind: str


class DefinitionView(_Frozen):
    """What a definition's policies say of its steps, and whether a live worker has it."""

    policies: Mapping[str, Any]
    has_live_worker: bool = False

    def has_undo(self, step: str) -> bool:
        """Whether the step has an undo."""
        return self._step(step).get("undo") is not None

    def service(self, step: str) -> str:
        """The remote service that does the step."""
        return str(self._step(step).get("action", "")).partition(".")[0]

    def _step(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.policies.get("steps", {}).get(name, {})
        return found


class Effect(_Frozen):
    """An effect in a service's ledger, or, of kind tombstone, a key that was barred before it had one."""

    key: str
    step: str
    token: int
    created_at: datetime
    undone_at: datetime | None

    @property
    def is_live(self) -> bool:
        """Whether it stands."""
        return self.undone_at is None


class Call(_Frozen):
    """A request that a service received. `duplicate`: made by the network, not by an Agent."""

    key: str
    undo: bool
    time_left_ms: int | None
    duplicate: bool
    outcome: str

    @property
    def step(self) -> str:
        """The step that it was made for."""
        return self.key.split(":")[1]


class Ledger(_Frozen):
    """What one service has on record of one task."""

    effects: Sequence[Effect] = ()
    tombstones: Sequence[Effect] = ()
    calls: Sequence[Call] = ()


class Terms(_Frozen):
    """How late is too late.

    Attributes:
        detection_delay: A held task may be overdue by so much before the Supervisor must have found it.
        claim_delay: A task may be due by so much before a live worker must have claimed it.
    """

    detection_delay: timedelta = timedelta(seconds=30)
    claim_delay: timedelta = timedelta(minutes=5)


class Picture(_Frozen):
    """One task.

    Attributes:
        digest: That of its business record; None if there is none.
        definition: None if it is not on record.
        ledgers: By service; None where they were not asked, or the task moved after they were read.
        now: The database's clock when the rows were read.
    """

    task: TaskView
    steps: Sequence[StepView]
    undo_log: Sequence[EntryView]
    events: Sequence[EventView]
    alerts: Sequence[AlertView]
    digest: str | None
    definition: DefinitionView | None
    ledgers: Mapping[str, Ledger] | None
    now: datetime
    terms: Terms = Field(default_factory=Terms)

    def undoable(self, step: str) -> bool:
        """Whether a step has an undo, by the policies on record or by the undo log."""
        logged = any(e.step == step for e in self.undo_log)
        return logged or (self.definition is not None and self.definition.has_undo(step))
