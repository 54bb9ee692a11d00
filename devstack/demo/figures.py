"""The demo's end in figures, from the state store, the business records and the services' own ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from definitions.order import ORDER
from devstack.demo.moment import Moment
from domain.messages import Json
from domain.states import TaskState
from store.rows import Task


@dataclass(frozen=True)
class StepFigures:
    """Calls that a service received for a step, against the calls that were granted."""

    name: str
    calls: int
    budget: int
    undo_calls: int
    undo_budget: int


@dataclass(frozen=True)
class TaskFigures:
    """How a task ended. `recoveries`: how often the Supervisor took it over."""

    task_id: str
    definition: str
    state: TaskState
    attempts: int
    recoveries: int
    steps: Sequence[StepFigures]


@dataclass(frozen=True)
class ServiceFigures:
    """What a ledger says. `replayed`: calls that were answered from memory, without a second effect."""

    name: str
    calls: int
    live: int
    undone: int
    tombstones: int
    refused: int
    replayed: int


@dataclass(frozen=True)
class Money:
    """Of one currency, in its minor unit: what the ledger of payments and what the orders say."""

    charged: int
    refunded: int
    owed: int


def figures_of_task(moment: Moment, task: Task) -> TaskFigures:
    """How a task ended, and what its steps took."""
    calls = moment.calls
    steps = [
        StepFigures(
            name=s.name,
            calls=calls[task.task_id, s.name, False],
            budget=s.budget,
            undo_calls=calls[task.task_id, s.name, True],
            undo_budget=s.undo_budget,
        )
        for s in moment.steps_of(task)
    ]
    return TaskFigures(task.task_id, task.definition, task.state, task.epoch, moment.recoveries_of(task), steps)


def figures_of_service(moment: Moment, name: str) -> ServiceFigures:
    """What a service's ledger says."""
    tally = moment.tally
    effects = tally.by_service[name]["effects"]
    undone = sum(e["undone_at"] is not None for e in effects)
    return ServiceFigures(
        name=name,
        calls=tally.count(name, "calls"),
        live=len(effects) - undone,
        undone=undone,
        tombstones=tally.count(name, "tombstones"),
        refused=tally.count(name, "refusals"),
        replayed=tally.replays(name),
    )


def money_of(moment: Moment, records: Mapping[str, Json]) -> dict[str, Money]:
    """What was charged, and what the processed orders cost by their business records, by currency."""
    charged, refunded, owed = Counter[str](), Counter[str](), Counter[str]()
    for effect in moment.tally.by_service["payments"]["effects"]:
        body = effect["body"]
        charged[body["currency"]] += body["amount_minor"]
        refunded[body["currency"]] += body["amount_minor"] if effect["undone_at"] else 0
    for task in moment.in_state(TaskState.PROCESSED):
        if task.definition == ORDER.name:
            order = ORDER.record.model_validate(records[task.task_id])
            owed[order.currency] += order.total_minor  # type: ignore[attr-defined]  # an Order
    return {c: Money(charged[c], refunded[c], owed[c]) for c in sorted({*charged, *owed})}
