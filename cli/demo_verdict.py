"""What came of the demo, computed from the state store, the business records and the services' own ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cli.demo_picture import Picture
from cli.demo_services import Fault
from cli.demo_story import Kill
from domain.definition import Registry
from domain.messages import Json
from domain.states import TaskState
from pipelines.order import ORDER
from store.tables import Task


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


@dataclass(frozen=True)
class Check:
    """Something that must hold. `found`: the figures, or what contradicts it."""

    rule: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Verdict:
    """Everything that is told at the end."""

    tasks: Sequence[TaskFigures]
    faults: Sequence[Fault]
    refusals: Mapping[str, int]
    kills: Sequence[Kill]
    corrected: Sequence[str]
    services: Sequence[ServiceFigures]
    money: Mapping[str, Money]
    checks: Sequence[Check]

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return all(c.holds for c in self.checks)


def judge(
    picture: Picture,
    records: Mapping[str, Json],
    registry: Registry,
    faults: Sequence[Fault],
    kills: Sequence[Kill],
    corrected: Sequence[str],
) -> Verdict:
    """Judge the end of the demo. `records`: business records by task id, as they are now."""
    tasks = [_task(picture, t) for t in picture.tasks]
    money = _money(picture, records)
    return Verdict(
        tasks=tasks,
        faults=faults,
        refusals={f"{s} {reason}": n for (s, reason), n in sorted(picture.ledgers.refusals().items())},
        kills=kills,
        corrected=corrected,
        services=[_service(picture, s) for s in picture.ledgers.by_service],
        money=money,
        checks=[
            _all_settled(picture),
            _nobody_is_needed(picture),
            _no_effect_twice(picture),
            _processed_is_complete(picture, registry),
            _compensated_is_undone(picture),
            _money_adds_up(money),
            _within_budget(tasks),
            _kill_was_survived(picture, kills),
        ],
    )


def _task(picture: Picture, task: Task) -> TaskFigures:
    calls = picture.calls
    steps = [
        StepFigures(
            name=s.name,
            calls=calls[task.task_id, s.name, False],
            budget=s.budget,
            undo_calls=calls[task.task_id, s.name, True],
            undo_budget=s.undo_budget,
        )
        for s in picture.steps_of(task)
    ]
    return TaskFigures(task.task_id, task.definition, task.state, task.epoch, picture.recoveries_of(task), steps)


def _service(picture: Picture, name: str) -> ServiceFigures:
    ledgers = picture.ledgers
    effects = ledgers.by_service[name]["effects"]
    undone = sum(e["undone_at"] is not None for e in effects)
    return ServiceFigures(
        name=name,
        calls=ledgers.count(name, "calls"),
        live=len(effects) - undone,
        undone=undone,
        tombstones=ledgers.count(name, "tombstones"),
        refused=ledgers.count(name, "refusals"),
        replayed=ledgers.replays(name),
    )


def _money(picture: Picture, records: Mapping[str, Json]) -> dict[str, Money]:
    charged, refunded, owed = Counter[str](), Counter[str](), Counter[str]()
    for effect in picture.ledgers.by_service["payments"]["effects"]:
        body = effect["body"]
        charged[body["currency"]] += body["amount_minor"]
        refunded[body["currency"]] += body["amount_minor"] if effect["undone_at"] else 0
    for task in picture.in_state(TaskState.PROCESSED):
        if task.definition == ORDER.name:
            order = ORDER.record.model_validate(records[task.task_id])
            owed[order.currency] += order.total_minor  # type: ignore[attr-defined]  # an Order
    return {c: Money(charged[c], refunded[c], owed[c]) for c in sorted({*charged, *owed})}


def _all_settled(picture: Picture) -> Check:
    left = [t.task_id for t in picture.tasks if not t.state.is_settled]
    return _check("every task is settled", left, f"{len(picture.tasks)} of {len(picture.tasks)}")


def _nobody_is_needed(picture: Picture) -> Check:
    left = [t.task_id for t in picture.in_state(TaskState.ERROR, TaskState.COMPENSATION_FAILED)]
    return _check("no task waits for a person any more", left, "none")


def _no_effect_twice(picture: Picture) -> Check:
    live = picture.ledgers.live()
    twice = [f"{task}:{step}" for (task, step), n in live.items() if n > 1]
    return _check("no effect stands twice: one at most for each task and step", twice, f"{sum(live.values())} effects")


def _processed_is_complete(picture: Picture, registry: Registry) -> Check:
    live = picture.ledgers.live()
    processed = picture.in_state(TaskState.PROCESSED)
    lacking = []
    for task in processed:
        definition = registry.find(task.definition, task.version)
        steps = definition.steps if definition else ()
        lacking += [f"{task.task_id}:{s.name}" for s in steps if not live[task.task_id, s.name]]
    return _check("Processed means that every step's effect is there", lacking, f"{len(processed)} tasks")


def _compensated_is_undone(picture: Picture) -> Check:
    compensated = {t.task_id for t in picture.in_state(TaskState.COMPENSATED)}
    standing = [f"{task}:{step}" for (task, step), n in picture.ledgers.live().items() if n and task in compensated]
    return _check("Compensated means that no effect is left", standing, f"{len(compensated)} tasks")


def _money_adds_up(money: Mapping[str, Money]) -> Check:
    wrong = [c for c, m in money.items() if m.charged - m.refunded != m.owed]
    sums = "; ".join(
        f"{amount(m.charged)} − {amount(m.refunded)} = {amount(m.charged - m.refunded)} {c}, due {amount(m.owed)}"
        for c, m in money.items()
    )
    return Check("charged less refunded is what the processed orders cost", bool(money) and not wrong, sums)


def _within_budget(tasks: Sequence[TaskFigures]) -> Check:
    over = [
        f"{t.task_id}:{s.name}" for t in tasks for s in t.steps if s.calls > s.budget or s.undo_calls > s.undo_budget
    ]
    most = max((s.calls for t in tasks for s in t.steps), default=0)
    return _check("no step got more calls than were granted", over, f"{most} at most for one step")


def _kill_was_survived(picture: Picture, kills: Sequence[Kill]) -> Check:
    held = {task_id for k in kills for task_id in k.held}
    ends = Counter(t.state.value for t in picture.tasks if t.task_id in held)
    said = f"{len(held)} tasks held: " + ", ".join(f"{n} {state}" for state, n in ends.items())
    done = all(t.state.is_settled for t in picture.tasks if t.task_id in held)
    return Check("the worker was killed with work in hand, and none of it was lost", bool(held) and done, said)


def amount(minor: int) -> str:
    """Money with two decimals."""
    return f"{minor / 100:,.2f}"


def _check(rule: str, against: Sequence[str], found: str) -> Check:
    return Check(rule, not against, ", ".join(against) if against else found)
