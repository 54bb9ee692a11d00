"""Rows as people and tools read them: plain values, by the names of the columns that are read.

The migrations say what the tables are. SQLModel's classes are made of these, in `tables.py`, so that a command that
only looks starts without it.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from domain.messages import Json
from domain.states import BreakerState, EventKind, ServiceEventKind, StepState, TaskState, UndoState


class Row(BaseModel):
    """One row of `table`. Its fields are columns of that table."""

    model_config = ConfigDict(frozen=True)

    table: ClassVar[str]


class Task(Row):
    """One logical operation."""

    table = "task"

    task_id: str
    definition: str
    version: int
    state: TaskState
    confirmed: bool
    locked_by: str | None
    run_id: str | None
    worker: str | None
    epoch: int
    complete_by: datetime | None
    not_before: datetime
    failure_count: int
    record_digest: str
    reply_to: str | None
    submitter: str
    data_class: str
    created_at: datetime
    updated_at: datetime
    state_since: datetime
    last_event: int
    last_seq: int
    error: Json | None


class Step(Row):
    """One step of a task."""

    table = "step"

    task_id: str
    name: str
    position: int
    state: StepState
    epoch: int
    complete_by: datetime | None
    failure_count: int
    pivot: bool
    service: str
    quarantine_s: float | None
    budget: int
    budget_left: int
    undo_budget: int
    undo_budget_left: int
    reserved: int
    gave_up: bool
    outcome_unknown: bool
    key_generation: int
    key_since: datetime | None
    result: Json | None
    error: Json | None
    started_at: datetime | None
    completed_at: datetime | None


class Compensation(Row):
    """One entry of a task's compensation log."""

    table = "compensation"

    task_id: str
    seq: int
    step: str
    action: str
    request: Json
    generation: int
    state: UndoState
    attempts: int
    error: Json | None
    note: Json | None
    quarantined_until: datetime | None
    logged_at: datetime
    undone_at: datetime | None


class Event(Row):
    """One transition of a task."""

    table = "event"

    task_id: str
    number: int
    kind: EventKind
    state_from: TaskState | None
    state_to: TaskState
    epoch: int
    actor: str
    detail: Json
    at: datetime


class Alert(Row):
    """Something a person must look at."""

    table = "alert"

    id: int
    kind: str
    task_id: str | None
    message: str
    raised_at: datetime


class DeadLetter(Row):
    """A submission that contradicts what is on record."""

    table = "dead_letter"

    id: int
    task_id: str
    submitter: str
    reason: str
    message: Json
    received_at: datetime


class DefinitionRow(Row):
    """A released definition."""

    table = "definition"

    name: str
    version: int
    policies: Json
    released_at: datetime


class ServiceRow(Row):
    """The circuit breaker of a remote service; one that has none on record is closed."""

    table = "service"

    name: str
    state: str = "closed"
    failures: int = 0
    reports: list[str] = []
    openings: int = 0
    since: datetime
    cause: str | None = None
    retry_at: datetime | None = None
    probe_task: str | None = None
    probe_until: datetime | None = None
    forced: str | None = None
    forced_by: str | None = None
    forced_reason: str | None = None


class ServiceEvent(Row):
    """What moved the breaker of a remote service."""

    table = "service_event"

    id: int
    service: str
    kind: ServiceEventKind
    state_from: BreakerState
    state_to: BreakerState
    task_id: str | None
    until: datetime | None
    cause: str | None
    requester: str | None
    reason: str | None
    request: str | None
    at: datetime


class Presence(Row):
    """A worker that has a definition, and when it last said so."""

    table = "presence"

    name: str
    version: int
    worker: str
    seen_at: datetime


class Inbox(Row):
    """An answer that came later."""

    table = "inbox"

    key: str
    response_id: str
    body: Json
    received_at: datetime


class Sweep(Row):
    """A sweep of the Supervisor, and until when supervision or the store was out before it."""

    table = "sweep"

    id: int
    outage_until: datetime | None


class BusinessRecord(Row):
    """The business details of a task, in the orders database; `outcome` closes it."""

    table = "business_record"

    task_id: str
    digest: str
    outcome: str | None
