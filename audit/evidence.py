"""What others than the stores have on record: the services' ledgers, Temporal's runs, the submitters' own log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from domain.ids import TASK_ID
from domain.messages import Json
from store.admission import AdmissionCaps

COMMITTED_WITHIN = timedelta(seconds=15)
"""An event's instant is that of its statement; by so much later it is committed, as a rule, or never: a transaction is
given up then (`store/database.py`), unless its process was stopped in the middle of it."""


class Frozen(BaseModel):
    """Base of all that is read from rows or JSON: immutable, without what is not asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Effect(Frozen):
    """An effect in a service's ledger, or, of kind tombstone, a key that was barred before it had one."""

    key: str
    step: str
    token: int
    created_at: datetime
    undone_at: datetime | None
    body: Json | None = None

    @property
    def is_live(self) -> bool:
        """Whether it stands."""
        return self.undone_at is None


class Call(Frozen):
    """A request that a service received. `duplicate`: made by the network. `decided_at`: when its outcome was."""

    key: str
    undo: bool
    token: int | None = None
    time_left_ms: int | None
    duplicate: bool
    outcome: str
    received_at: datetime | None = None
    decided_at: datetime | None = None

    @property
    def step(self) -> str:
        """The step that it was made for."""
        return self.key.split(":")[1]


class Ledger(Frozen):
    """What one service has on record of one task. `probes`: questions by key, which are calls too."""

    effects: Sequence[Effect] = ()
    tombstones: Sequence[Effect] = ()
    calls: Sequence[Call] = ()
    probes: Sequence[Call] = ()


class Run(Frozen):
    """A run of an attempt, as Temporal has it on record. `status`: in Temporal's words, in capitals.

    `is_reset`: it was made by resetting another one, so it has the same workflow id and does not hold the task.
    `digest`: that of the business record in its input; None if it has none, as an undo.
    """

    workflow_id: str
    run_id: str
    status: str
    digest: str | None = None
    is_reset: bool = False

    @property
    def is_attempt(self) -> bool:
        """Whether it is an attempt at all, and not a sweep or a request for undo."""
        parts = self.workflow_id.split("/")
        return len(parts) == 3 and TASK_ID.fullmatch(parts[1]) is not None and parts[2].isdecimal()

    @property
    def task_id(self) -> str:
        """The task that it is an attempt at."""
        return self.workflow_id.split("/")[1]

    @property
    def epoch(self) -> int:
        """Which attempt it is."""
        return int(self.workflow_id.split("/")[2])


class SubmissionReply(Frozen):
    """A line of a submitter's log: what it was told about a submission of that content.

    `unreachable`: it was told nothing, so the submission may have been taken. `new`: by this very call.
    """

    task_id: str
    submitter: str
    digest: str
    verdict: Literal["accepted", "conflict", "refused", "invalid", "unreachable"]
    new: bool = False


@dataclass(frozen=True)
class Ledgers:
    """The services' ledgers by task and service, read after `asked_at` by the state store's clock."""

    by_task: Mapping[str, Mapping[str, Ledger]]
    services: tuple[str, ...]
    asked_at: datetime

    @classmethod
    def of(cls, found: Mapping[str, Any], asked_at: datetime) -> Ledgers:
        """From the rows by service. Calls without a key belong to no task, and are left out."""
        raw: dict[str, dict[str, dict[str, list[Any]]]] = {}
        for service, parts in found.items():
            for part in ("effects", "tombstones", "calls", "probes"):
                for row in parts[part]:
                    if row["task_id"] is not None:
                        of_task = raw.setdefault(row["task_id"], {}).setdefault(service, {})
                        of_task.setdefault(part, []).append(row)
        by_task = {
            task: {service: Ledger.model_validate(parts) for service, parts in services.items()}
            for task, services in raw.items()
        }
        return cls(by_task, tuple(found), asked_at)

    def for_task(self, task_id: str) -> Mapping[str, Ledger]:
        """Those of a task: every service, also those that know nothing of it."""
        found = self.by_task.get(task_id, {})
        return {service: found.get(service, Ledger()) for service in self.services}


@dataclass(frozen=True)
class Runs:
    """The attempts' runs by task, read after `asked_at` by the state store's clock."""

    by_task: Mapping[str, Sequence[Run]]
    asked_at: datetime

    @classmethod
    def of(cls, found: Iterable[Run], asked_at: datetime) -> Runs:
        """From all runs of a namespace; those that are no attempt are left out."""
        by_task: dict[str, list[Run]] = {}
        for run in found:
            if run.is_attempt:
                by_task.setdefault(run.task_id, []).append(run)
        return cls(by_task, asked_at)


@dataclass(frozen=True)
class SubmissionReplies:
    """The log of some submitters, all of it, by task."""

    by_task: Mapping[str, Sequence[SubmissionReply]]
    submitters: frozenset[str]

    @classmethod
    def of(cls, found: Iterable[SubmissionReply]) -> SubmissionReplies:
        """From its lines."""
        by_task: dict[str, list[SubmissionReply]] = {}
        for answer in found:
            by_task.setdefault(answer.task_id, []).append(answer)
        return cls(by_task, frozenset(a.submitter for replies in by_task.values() for a in replies))


@dataclass(frozen=True)
class Evidence:
    """What there is beside the stores; None: not asked for."""

    ledgers: Ledgers | None = None
    runs: Runs | None = None
    replies: SubmissionReplies | None = None
    caps: AdmissionCaps | None = None
