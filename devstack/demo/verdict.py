"""What came of the demo: its figures, and what is asserted, by the audit's checks and by what only the demo knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from audit.checks import Check, events, ledgers, rows
from audit.evidence import Ledgers
from audit.run import AuditResult, audit
from audit.sources.stores import open_loader
from audit.task import Tolerances
from devstack.demo.figures import Money, ServiceFigures, TaskFigures, figures_of_service, figures_of_task, money_of
from devstack.demo.moment import Moment
from devstack.demo.services import Sabotage, SimulatorControl
from devstack.demo.story import Kill
from domain.messages import Json
from domain.states import TaskState
from store.admission import GONE

_MOST_AUDITS = 3

_ONCE: tuple[Check, ...] = (
    ledgers.effect_is_there_at_most_once,
    events.finished_work_is_not_repeated,
)
_COMPLETE: tuple[Check, ...] = (
    ledgers.processed_has_every_effect,
    rows.processed_is_complete,
)
_UNDONE: tuple[Check, ...] = (
    ledgers.compensated_has_no_effect,
    rows.compensated_is_undone,
)
_PAID: tuple[Check, ...] = (ledgers.money_adds_up,)
_GRANTED: tuple[Check, ...] = (
    ledgers.calls_stay_within_what_was_granted,
    rows.budgets_are_not_overdrawn,
)
_TOLD = frozenset(c.__name__ for c in (*_ONCE, *_COMPLETE, *_UNDONE, *_PAID, *_GRANTED))
"""Invariants that the demo tells in words of its own; of all others it tells that they hold."""


@dataclass(frozen=True)
class Assertion:
    """Something that must hold. `found`: the figures, or what contradicts it."""

    rule: str
    holds: bool
    found: str


@dataclass(frozen=True)
class DemoVerdict:
    """Everything that is told at the end."""

    tasks: Sequence[TaskFigures]
    faults: Sequence[Sabotage]
    refusals: Mapping[str, int]
    kills: Sequence[Kill]
    corrected: Sequence[str]
    services: Sequence[ServiceFigures]
    money: Mapping[str, Money]
    checks: Sequence[Assertion]

    @property
    def holds(self) -> bool:
        """Whether every check does."""
        return all(c.holds for c in self.checks)


async def audited(state_url: str, orders_url: str, control: SimulatorControl) -> AuditResult:
    """Every task against every invariant, by the stores and by the services' ledgers.

    Once more if a task moved meanwhile, as the ledgers can't judge it then.
    """
    async with open_loader(state_url, orders_url, Tolerances(), GONE) as loader:
        for _ in range(_MOST_AUDITS):
            asked_at = await loader.now()
            findings = await audit(loader, ledgers=Ledgers.of((await control.tally()).by_service, asked_at))
            if not findings.without_ledgers:
                break
    return findings


def verdict_of(
    moment: Moment,
    findings: AuditResult,
    records: Mapping[str, Json],
    faults: Sequence[Sabotage],
    kills: Sequence[Kill],
    corrected: Sequence[str],
) -> DemoVerdict:
    """What came of the demo. `findings`: of an audit since. `records`: business records by task id, as they are now."""
    tasks = [figures_of_task(moment, t) for t in moment.tasks]
    services = [figures_of_service(moment, s) for s in moment.tally.by_service]
    money = money_of(moment, records)
    return DemoVerdict(
        tasks=tasks,
        faults=faults,
        refusals={f"{s} {reason}": n for (s, reason), n in sorted(moment.tally.refusals().items())},
        kills=kills,
        corrected=corrected,
        services=services,
        money=money,
        checks=[
            _all_settled(moment),
            _nobody_is_needed(moment),
            _no_effect_twice(findings, services),
            _processed_is_complete(findings, moment),
            _compensated_is_undone(findings, moment),
            _money_adds_up(findings, money),
            _within_what_was_granted(findings, tasks),
            _kill_was_survived(moment, kills),
            _all_else_holds(findings, moment),
        ],
    )


def _all_settled(moment: Moment) -> Assertion:
    left = [t.task_id for t in moment.tasks if not t.state.is_settled]
    return _assertion("every task is settled", left, f"{len(moment.tasks)} of {len(moment.tasks)}")


def _nobody_is_needed(moment: Moment) -> Assertion:
    left = [t.task_id for t in moment.in_state(TaskState.ERROR, TaskState.COMPENSATION_FAILED)]
    return _assertion("no task waits for a person any more", left, "none")


def _no_effect_twice(findings: AuditResult, services: Sequence[ServiceFigures]) -> Assertion:
    found = f"{sum(s.live for s in services)} effects"
    return _by_audit("no effect stands twice: one at most for each task and step", findings, _ONCE, found)


def _processed_is_complete(findings: AuditResult, moment: Moment) -> Assertion:
    found = f"{len(moment.in_state(TaskState.PROCESSED))} tasks"
    return _by_audit("Processed means that every step's effect is there", findings, _COMPLETE, found)


def _compensated_is_undone(findings: AuditResult, moment: Moment) -> Assertion:
    found = f"{len(moment.in_state(TaskState.COMPENSATED))} tasks"
    return _by_audit("Compensated means that no effect is left that has an undo", findings, _UNDONE, found)


def _money_adds_up(findings: AuditResult, money: Mapping[str, Money]) -> Assertion:
    """By the audit for each task; in all, which it can't know, by what the orders cost."""
    sums = "; ".join(
        f"{_amount(m.charged)} − {_amount(m.refunded)} = {_amount(m.charged - m.refunded)} {c}, due {_amount(m.owed)}"
        for c, m in money.items()
    )
    wrong = not money or any(m.charged - m.refunded != m.owed for m in money.values())
    against = [*_against(findings, _PAID), *([sums] if wrong else [])]
    rule = "charged less refunded is what the processed orders cost"
    return _assertion(rule, against, f"{sums}; {_a_task(_PAID)}")


def _within_what_was_granted(findings: AuditResult, tasks: Sequence[TaskFigures]) -> Assertion:
    most = max((s.calls for t in tasks for s in t.steps), default=0)
    return _by_audit("no step got more calls than were granted", findings, _GRANTED, f"{most} at most for one step")


def _kill_was_survived(moment: Moment, kills: Sequence[Kill]) -> Assertion:
    held = {task_id for k in kills for task_id in k.held}
    ends = Counter(t.state.value for t in moment.tasks if t.task_id in held)
    said = f"{len(held)} tasks held: " + ", ".join(f"{n} {state}" for state, n in ends.items())
    done = all(t.state.is_settled for t in moment.tasks if t.task_id in held)
    return Assertion("the worker was killed with work in hand, and none of it was lost", bool(held) and done, said)


def _all_else_holds(findings: AuditResult, moment: Moment) -> Assertion:
    against = [f"{v.task_id}: {v.text}" for v in findings.violations if v.invariant not in _TOLD]
    against += [f"{t.task_id}: it was not audited" for t in moment.tasks if t.task_id not in findings.task_ids]
    if findings.without_ledgers:
        against.append(f"{findings.without_ledgers} tasks kept moving, and were not judged by the ledgers")
    found = f"{findings.checks} checks in all, of {findings.tasks} tasks and {findings.events} events"
    return _assertion("every other invariant of `audit` holds as well", against, found)


def _by_audit(rule: str, findings: AuditResult, checks: Sequence[Check], found: str) -> Assertion:
    return _assertion(rule, _against(findings, checks), f"{found}; {_a_task(checks)}")


def _a_task(checks: Sequence[Check]) -> str:
    return f"{len(checks)} check{'' if len(checks) == 1 else 's'} a task"


def _against(findings: AuditResult, checks: Sequence[Check]) -> list[str]:
    names = {c.__name__ for c in checks}
    return [f"{v.task_id}: {v.text}" for v in findings.violations if v.invariant in names]


def _assertion(rule: str, against: Sequence[str], found: str) -> Assertion:
    return Assertion(rule, not against, "; ".join(against) if against else found)


def _amount(minor: int) -> str:
    """Money with two decimals."""
    return f"{minor / 100:,.2f}"
