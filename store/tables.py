"""The tables of both databases, as SQLModel classes: what the migrations create and plain reads select from.

State store: `task`, `step`, `compensation`, `event`, `definition`, `service`, `service_event`, `inbox`, `sweep`,
`stale_run`, `dead_letter`, `alert`, `presence`.
Orders database (a second database): `business_record`. All instants are `timestamptz`, set by the database's clock.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Enum,
    Float,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlmodel import Field, SQLModel

from domain.ids import TASK_ID
from domain.states import BreakerState, EventKind, ServiceEventKind, StepState, TaskState, UndoState

STATE_STORE = MetaData()
ORDERS = MetaData()


class StateTable(SQLModel):
    """Base of the tables in the state store."""

    metadata = STATE_STORE


class OrdersTable(SQLModel):
    """Base of the tables in the orders database."""

    metadata = ORDERS


def _one_of(column: str, values: type[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(v.value) for v in values)})"


def _text(**options: Any) -> Any:
    return Column(Text, nullable=options.pop("nullable", False), **options)


def _enum(values: type[StrEnum], *, default: StrEnum | None = None, nullable: bool = False) -> Any:
    """A column that stores the values of a closed set, not their Python names."""
    kind = Enum(values, native_enum=False, length=32, values_callable=lambda e: [v.value for v in e])
    return Column(kind, nullable=nullable, server_default=default.value if default else None)


def _int(default: int | None = None) -> Any:
    return Column(Integer, nullable=False, server_default=None if default is None else str(default))


def _at(*, nullable: bool = False) -> Any:
    default = None if nullable else text("clock_timestamp()")
    return Column(DateTime(timezone=True), nullable=nullable, server_default=default)


def _flag() -> Any:
    return Column(Boolean, nullable=False, server_default=text("false"))


def _json(*, nullable: bool = True) -> Any:
    return Column(JSONB(none_as_null=True), nullable=nullable)


class Task(StateTable, table=True):
    """One logical operation. Business details are not repeated here: an attempt loads them by id.

    `confirmed`: its business record is there; nobody claims it before. `claim_nonce`: what only this claim's run
    knows. `waiting`: held, and all its running steps wait for a later answer: it fills no slot of its worker.
    `progress_at`: when it was submitted, first claimed, a step or an undo was last finished, its undo began, or a
    person last asked.
    """

    __tablename__ = "task"
    __table_args__ = (
        CheckConstraint(f"task_id ~ '^{TASK_ID.pattern}$'", name="task_id_is_well_formed"),
        CheckConstraint(_one_of("state", TaskState), name="task_state_is_known"),
        CheckConstraint("(locked_by IS NULL) = (complete_by IS NULL)", name="held_exactly_while_it_has_a_deadline"),
        CheckConstraint("run_id IS NULL OR locked_by IS NOT NULL", name="run_only_while_held"),
        CheckConstraint(
            "CASE state WHEN 'Processing' THEN locked_by IS NOT NULL WHEN 'Compensating' THEN true"
            " ELSE locked_by IS NULL END",
            name="held_only_while_at_work",
        ),
        CheckConstraint(
            "confirmed OR (state = 'Pending' AND epoch = 0 AND last_event = 1)",
            name="unconfirmed_until_anything_happens",
        ),
        CheckConstraint("epoch >= 0 AND failure_count >= 0 AND last_event >= 0", name="counts_are_not_negative"),
        # claim.sql, next_due.sql: what can be claimed, soonest first, by definition and state
        Index(
            "task_claimable",
            "definition",
            "version",
            "state",
            "not_before",
            "task_id",
            postgresql_where=text("locked_by IS NULL AND confirmed AND state IN ('Pending', 'Compensating')"),
        ),
        # Admission.unconfirmed: submissions that are not finished, oldest first
        Index("task_unconfirmed", "created_at", "task_id", postgresql_where=text("NOT confirmed")),
        # expired.sql: what is held, by deadline
        Index("task_held", "complete_by", "task_id", postgresql_where=text("locked_by IS NOT NULL")),
        # claim.sql: what fills the slots of one worker
        Index("task_held_by_worker", "worker", postgresql_where=text("locked_by IS NOT NULL AND NOT waiting")),
        # admit.sql: the backlog and its age
        Index(
            "task_open",
            "definition",
            "state",
            "not_before",
            postgresql_where=text("state IN ('Pending', 'Processing')"),
        ),
        # list: what needs a person
        Index(
            "task_needs_a_person",
            "state",
            "state_since",
            postgresql_where=text("state IN ('Error', 'CompensationFailed')"),
        ),
        # watch_stuck.sql: undos, the longest first
        Index("task_being_undone", "state_since", "task_id", postgresql_where=text("state = 'Compensating'")),
        # watch_progress.sql: open tasks without progress, the longest first
        Index(
            "task_in_vain",
            "definition",
            "version",
            "progress_at",
            "task_id",
            postgresql_where=text("epoch > 0 AND state IN ('Pending', 'Processing', 'Compensating')"),
        ),
        # list: newest first
        Index("task_created", "created_at", "task_id"),
    )

    task_id: str = Field(sa_column=Column(String, primary_key=True))
    definition: str = Field(sa_column=_text())
    version: int = Field(sa_column=_int())
    state: TaskState = Field(sa_column=_enum(TaskState))
    confirmed: bool = Field(default=False, sa_column=_flag())
    locked_by: str | None = Field(default=None, sa_column=_text(nullable=True))
    run_id: str | None = Field(default=None, sa_column=_text(nullable=True))
    claim_nonce: str | None = Field(default=None, sa_column=_text(nullable=True))
    worker: str | None = Field(default=None, sa_column=_text(nullable=True))
    waiting: bool = Field(default=False, sa_column=_flag())
    epoch: int = Field(default=0, sa_column=_int(0))
    complete_by: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    not_before: datetime = Field(sa_column=_at())
    failure_count: int = Field(default=0, sa_column=_int(0))
    record_digest: str = Field(sa_column=_text())
    reply_to: str | None = Field(default=None, sa_column=_text(nullable=True))
    submitter: str = Field(sa_column=_text())
    data_class: str = Field(sa_column=_text())
    created_at: datetime = Field(sa_column=_at())
    updated_at: datetime = Field(sa_column=_at())
    state_since: datetime = Field(sa_column=_at())
    progress_at: datetime = Field(sa_column=_at())
    last_event: int = Field(default=0, sa_column=_int(0))
    last_seq: int = Field(default=0, sa_column=_int(0))
    error: dict[str, Any] | None = Field(default=None, sa_column=_json())


class Step(StateTable, table=True):
    """One step of a task. `budget` is what was granted in all, `budget_left` what may still be reserved."""

    __tablename__ = "step"
    __table_args__ = (
        CheckConstraint(_one_of("state", StepState), name="step_state_is_known"),
        CheckConstraint("budget_left BETWEEN 0 AND budget", name="budget_is_not_overdrawn"),
        CheckConstraint("undo_budget_left BETWEEN 0 AND undo_budget", name="undo_budget_is_not_overdrawn"),
        CheckConstraint("state <> 'Running' OR complete_by IS NOT NULL", name="running_step_has_a_deadline"),
    )

    task_id: str = Field(sa_column=Column(String, primary_key=True))
    name: str = Field(sa_column=Column(String, primary_key=True))
    position: int = Field(sa_column=_int())
    state: StepState = Field(sa_column=_enum(StepState, default=StepState.NOT_STARTED))
    epoch: int = Field(default=0, sa_column=_int(0))
    complete_by: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    failure_count: int = Field(default=0, sa_column=_int(0))
    pivot: bool = Field(default=False, sa_column=_flag())
    service: str = Field(sa_column=_text())
    answers_later: bool = Field(default=False, sa_column=_flag())
    quarantine_s: float | None = Field(default=None, sa_column=Column(Float, nullable=True))
    budget: int = Field(sa_column=_int())
    budget_left: int = Field(sa_column=_int())
    undo_budget: int = Field(sa_column=_int())
    undo_budget_left: int = Field(sa_column=_int())
    reserved: int = Field(default=0, sa_column=_int(0))
    reservation: str | None = Field(default=None, sa_column=_text(nullable=True))
    gave_up: bool = Field(default=False, sa_column=_flag())
    outcome_unknown: bool = Field(default=False, sa_column=_flag())
    key_generation: int = Field(default=0, sa_column=_int(0))
    key_since: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    result: dict[str, Any] | None = Field(default=None, sa_column=_json())
    error: dict[str, Any] | None = Field(default=None, sa_column=_json())
    started_at: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    completed_at: datetime | None = Field(default=None, sa_column=_at(nullable=True))


class Compensation(StateTable, table=True):
    """The compensation log: one entry a step with an undo, written before the step's first call.

    `generation` of the undo's own key: a service repeats its answer to a key, so what is to be done anew has another.
    """

    __tablename__ = "compensation"
    __table_args__ = (
        CheckConstraint(_one_of("state", UndoState), name="undo_state_is_known"),
        UniqueConstraint("task_id", "step", name="step_is_logged_once"),
    )

    task_id: str = Field(sa_column=Column(String, primary_key=True))
    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    step: str = Field(sa_column=_text())
    action: str = Field(sa_column=_text())
    request: dict[str, Any] = Field(sa_column=_json(nullable=False))
    generation: int = Field(default=0, sa_column=_int(0))
    state: UndoState = Field(sa_column=_enum(UndoState, default=UndoState.LOGGED))
    attempts: int = Field(default=0, sa_column=_int(0))
    error: dict[str, Any] | None = Field(default=None, sa_column=_json())
    note: dict[str, Any] | None = Field(default=None, sa_column=_json())
    quarantined_until: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    logged_at: datetime = Field(sa_column=_at())
    undone_at: datetime | None = Field(default=None, sa_column=_at(nullable=True))


class Event(StateTable, table=True):
    """Append-only: one row a transition, in the transition's own transaction, numbered per task without gaps."""

    __tablename__ = "event"
    __table_args__ = (
        CheckConstraint(_one_of("kind", EventKind), name="event_kind_is_known"),
        CheckConstraint("number > 0", name="events_are_numbered_from_one"),
    )

    task_id: str = Field(sa_column=Column(String, primary_key=True))
    number: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    kind: EventKind = Field(sa_column=_enum(EventKind))
    state_from: TaskState | None = Field(default=None, sa_column=_enum(TaskState, nullable=True))
    state_to: TaskState = Field(sa_column=_enum(TaskState))
    epoch: int = Field(sa_column=_int())
    actor: str = Field(sa_column=_text())
    detail: dict[str, Any] = Field(sa_column=_json(nullable=False))
    at: datetime = Field(sa_column=_at())


class DefinitionRow(StateTable, table=True):
    """Policies of a released definition: what the Supervisor decides by, without any definition's code."""

    __tablename__ = "definition"
    name: str = Field(sa_column=Column(String, primary_key=True))
    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    policies: dict[str, Any] = Field(sa_column=_json(nullable=False))
    released_at: datetime = Field(sa_column=_at())


class Presence(StateTable, table=True):
    """A worker that has a definition, and when it last said so; one that stops takes its rows away."""

    __tablename__ = "presence"

    name: str = Field(sa_column=Column(String, primary_key=True))
    version: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    worker: str = Field(sa_column=Column(String, primary_key=True))
    seen_at: datetime = Field(sa_column=_at())


class ServiceRow(StateTable, table=True):
    """The circuit breaker of one remote service. No row: closed, and never otherwise.

    Open, one task at a time may probe it from `retry_at` on, under a lease until `probe_until`; `forced` is a person's
    word against its own judgement. `reports`: who has reported the last failures, newest first.
    """

    __tablename__ = "service"
    __table_args__ = (
        CheckConstraint("state IN ('closed', 'open')", name="breaker_state_is_known"),
        CheckConstraint("forced IN ('closed', 'open')", name="forced_state_is_known"),
        CheckConstraint("(probe_task IS NULL) = (probe_until IS NULL)", name="probe_has_a_lease"),
    )

    name: str = Field(sa_column=Column(String, primary_key=True))
    state: str = Field(default="closed", sa_column=_text(server_default="closed"))
    failures: int = Field(default=0, sa_column=_int(0))
    reports: list[str] = Field(default_factory=list, sa_column=Column(ARRAY(Text), nullable=False, server_default="{}"))
    openings: int = Field(default=0, sa_column=_int(0))
    since: datetime = Field(sa_column=_at())
    cause: str | None = Field(default=None, sa_column=_text(nullable=True))
    retry_at: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    probe_task: str | None = Field(default=None, sa_column=_text(nullable=True))
    probe_until: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    forced: str | None = Field(default=None, sa_column=_text(nullable=True))
    forced_by: str | None = Field(default=None, sa_column=_text(nullable=True))
    forced_reason: str | None = Field(default=None, sa_column=_text(nullable=True))


class ServiceEvent(StateTable, table=True):
    """Append-only: one row for whatever moved the breaker of a service, written with it.

    `task_id`: the task that reported it, or that probes. `until`: no probe before that; of a probe: its lease.
    `request`: by which a person's word is taken once.
    """

    __tablename__ = "service_event"
    __table_args__ = (
        CheckConstraint(_one_of("kind", ServiceEventKind), name="service_event_kind_is_known"),
        CheckConstraint(
            "(kind = 'by_hand') = (requester IS NOT NULL AND reason IS NOT NULL AND request IS NOT NULL)",
            name="word_says_who_and_why",
        ),
        Index("service_event_request", "request", unique=True, postgresql_where=text("request IS NOT NULL")),
    )

    id: int = Field(sa_column=Column(BigInteger, Identity(), primary_key=True))
    service: str = Field(sa_column=_text())
    kind: ServiceEventKind = Field(sa_column=_enum(ServiceEventKind))
    state_from: BreakerState = Field(sa_column=_enum(BreakerState))
    state_to: BreakerState = Field(sa_column=_enum(BreakerState))
    task_id: str | None = Field(default=None, sa_column=_text(nullable=True))
    until: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    cause: str | None = Field(default=None, sa_column=_text(nullable=True))
    requester: str | None = Field(default=None, sa_column=_text(nullable=True))
    reason: str | None = Field(default=None, sa_column=_text(nullable=True))
    request: str | None = Field(default=None, sa_column=_text(nullable=True))
    at: datetime = Field(sa_column=_at())


class Inbox(StateTable, table=True):
    """Answers that came later, once each by key and response id; looked at before any new call.

    A response id is the answering service's own: it says nothing about the answers to other keys.
    """

    __tablename__ = "inbox"

    key: str = Field(sa_column=Column(String, primary_key=True))
    response_id: str = Field(sa_column=Column(String, primary_key=True))
    body: dict[str, Any] = Field(sa_column=_json(nullable=False))
    deliveries: int = Field(default=1, sa_column=_int(1))
    received_at: datetime = Field(sa_column=_at())


class Sweep(StateTable, table=True):
    """What a sweep of the Supervisor did and cost.

    `outage_until`: until then supervision or the store was out, as this sweep found when it began (see
    `begin_sweep.sql`); `timeline`: of the server that it found.
    """

    __tablename__ = "sweep"
    __table_args__ = (
        Index("sweep_finished", "finished_at"),
        # expired.sql: whether there was an outage while a task was held
        Index("sweep_outage", "outage_until", postgresql_where=text("outage_until IS NOT NULL")),
    )

    id: int = Field(sa_column=Column(BigInteger, Identity(), primary_key=True))
    started_at: datetime = Field(sa_column=_at())
    finished_at: datetime | None = Field(default=None, sa_column=_at(nullable=True))
    found: int = Field(default=0, sa_column=_int(0))
    changed: int = Field(default=0, sa_column=_int(0))
    pages: int = Field(default=0, sa_column=_int(0))
    oldest_overdue_s: float = Field(default=0, sa_column=Column(Float, nullable=False, server_default="0"))
    timeline: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    outage_until: datetime | None = Field(default=None, sa_column=_at(nullable=True))


class StaleRun(StateTable, table=True):
    """An attempt that has lost its task: its run is to be ended, and what it has not answered to be passed on.

    `given_up`: no other attempt follows.
    """

    __tablename__ = "stale_run"
    __table_args__ = (Index("stale_run_due", "due_at"),)

    attempt: str = Field(sa_column=Column(String, primary_key=True))
    given_up: bool = Field(default=False, sa_column=_flag())
    due_at: datetime = Field(sa_column=_at())


class DeadLetter(StateTable, table=True):
    """A submission that contradicts what is on record: kept as it came, once, overwriting nothing."""

    __tablename__ = "dead_letter"
    __table_args__ = (UniqueConstraint("task_id", "digest", name="conflict_is_kept_once"),)

    id: int = Field(sa_column=Column(BigInteger, Identity(), primary_key=True))
    task_id: str = Field(sa_column=_text())
    submitter: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    message: dict[str, Any] = Field(sa_column=_json(nullable=False))
    digest: str = Field(sa_column=_text())
    received_at: datetime = Field(sa_column=_at())


class Alert(StateTable, table=True):
    """Something a person must look at."""

    __tablename__ = "alert"
    __table_args__ = (Index("alert_raised", "kind", "raised_at"),)

    id: int = Field(sa_column=Column(BigInteger, Identity(), primary_key=True))
    kind: str = Field(sa_column=_text())
    task_id: str | None = Field(default=None, sa_column=_text(nullable=True))
    message: str = Field(sa_column=_text())
    raised_at: datetime = Field(sa_column=_at())


class BusinessRecord(OrdersTable, table=True):
    """The business details of a task. `outcome` closes it: `abandoned`, or how the task ended.

    `amendment`: by which the last amendment is taken once.
    """

    __tablename__ = "business_record"

    task_id: str = Field(sa_column=Column(String, primary_key=True))
    definition: str = Field(sa_column=_text())
    record: dict[str, Any] | None = Field(default=None, sa_column=_json())
    digest: str = Field(sa_column=_text())
    amendments: int = Field(default=0, sa_column=_int(0))
    amendment: str | None = Field(default=None, sa_column=_text(nullable=True))
    outcome: str | None = Field(default=None, sa_column=_text(nullable=True))
    created_at: datetime = Field(sa_column=_at())
    updated_at: datetime = Field(sa_column=_at())


def _keep_finite(metadata: MetaData) -> None:
    """Let every instant be one that a clock can show, and that a program can read."""
    for table in metadata.tables.values():
        instants = [c.name for c in table.columns if isinstance(c.type, DateTime)]
        rule = " AND ".join(f"({i} BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')" for i in instants)
        table.append_constraint(CheckConstraint(rule, name="instants_are_finite"))


_keep_finite(STATE_STORE)
_keep_finite(ORDERS)
