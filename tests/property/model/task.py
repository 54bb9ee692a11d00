"""A task as the model sees it: its rows, what can be read from them, and the few ways in which they change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from domain.attempts import AttemptEnd
from domain.definition import Definition
from domain.ids import attempt_id
from domain.states import EventKind, StepState, TaskState, UndoState
from store.claims import Hold
from tests.property.model.rows import Entry, Step, Told

_T, _S, _U = TaskState, StepState, UndoState
AT_WORK = {_T.PROCESSING: _S.RUNNING, _T.COMPENSATING: _S.UNDOING}
ALERTS = {_T.ERROR: "task_in_error", _T.COMPENSATION_FAILED: "compensation_failed"}
NO_PROGRESS = (
    EventKind.CLAIMED,
    EventKind.RELEASED,
    EventKind.EXPIRED,
    EventKind.NOTED,
    EventKind.LATE_ANSWER,
)
SUBMITTER = "cli"
KNOWN = "the claim's own"
"""Stands for the nonce of a claim, which only the store makes."""


@dataclass
class Task:
    """A task that was admitted.

    `recorded`: its business record is there; `refusals`: starts in a row that were refused; `gone`: its row was
    removed; `broken`: services whose breaker is open; `in_vain`: how often it has expired since it made progress, or a
    person asked something of it.
    """

    task_id: str
    definition: Definition
    state: TaskState = _T.PENDING
    epoch: int = 0
    held: bool = False
    run_id: str | None = None
    late: bool = False
    due: bool = True
    failures: int = 0
    in_vain: int = 0
    recorded: bool = False
    confirmed: bool = False
    refusals: int = 0
    abandoned: bool = False
    gone: bool = False
    steps: dict[str, Step] = field(default_factory=dict)
    log: list[Entry] = field(default_factory=list)
    events: list[tuple[str, str | None, str, int, str]] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    late_answers: set[tuple[str, str]] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.steps = {s.name: Step.of(s) for s in self.definition.steps}
        self.events.append((EventKind.SUBMITTED, None, self.state, 0, f"submitter:{SUBMITTER}"))

    # --- what can be read -------------------------------------------------------------------------------------

    @property
    def attempt(self) -> str:
        """Workflow id of the newest attempt."""
        return attempt_id(self.definition.name, self.task_id, self.epoch)

    @property
    def is_claimable(self) -> bool:
        """Somebody may claim it once it is due."""
        return self.confirmed and not self.held and self.state in (_T.PENDING, _T.COMPENSATING)

    @property
    def at_work(self) -> list[str]:
        """Steps that this attempt has begun to do, or to undo, and has not finished."""
        return [n for n, s in self.steps.items() if s.state is AT_WORK.get(self.state) and s.epoch == self.epoch]

    @property
    def ready(self) -> list[str]:
        """Steps that a forward run may begin: all before them are Completed, and they are not."""
        done = {n for n, s in self.steps.items() if s.state is _S.COMPLETED}
        steps = self.definition.steps
        return [s.name for s in steps if s.name not in done and done.issuperset(self.definition.after(s))]

    @property
    def next_undo(self) -> str | None:
        """The step that is to be undone next: of those that are not, the one that began last."""
        return next((e.step for e in reversed(self.log) if e.state.is_open), None)

    @property
    def following(self) -> str | None:
        """The step that the next attempt needs first."""
        if self.state is _T.COMPENSATING:
            return self.next_undo
        return next((n for n, s in self.steps.items() if s.state is not _S.COMPLETED), None)

    @property
    def past_pivot(self) -> bool:
        """A pivot may have had its effect: the task can only go forward."""
        pivots = [self.steps[s.name] for s in self.definition.steps if s.pivot]
        return any(p.state in (_S.RUNNING, _S.COMPLETED) or (p.state is _S.FAILED and p.unknown) for p in pivots)

    @property
    def calls_are_over(self) -> bool:
        """Where only time keeps a late call out, the deadlines of all begun steps have passed."""
        undoes = {s.name: s.undo for s in self.definition.steps}
        begun = {n: s for n, s in self.steps.items() if s.state not in (_S.NOT_STARTED, _S.UNDONE)}
        return not any((undo := undoes[n]) and undo.quarantine and not s.overdue for n, s in begun.items())

    @property
    def is_in_quarantine(self) -> bool:
        """Some undo is to be done once more, but not yet."""
        return any(e.waits and e.state.is_open for e in self.log)

    @property
    def may_be_undone_now(self) -> bool:
        """Nothing forbids to begin its undo, or to go on with it."""
        return self.calls_are_over and not self.is_in_quarantine

    def is_blocked(self, step: str | None, *, undo: bool) -> bool:
        """Whether an open breaker keeps the task from a step, or from its undo."""
        found = next((s for s in self.definition.steps if s.name == step), None)
        action = found and (found.undo and found.undo.action if undo else found.action)
        return bool(action) and str(action).partition(".")[0] in self.broken

    def entry(self, step: str | None) -> Entry | None:
        """What the compensation log has about a step."""
        return next((e for e in self.log if e.step == step), None)

    def has_said(self, kind: EventKind, actor: str) -> bool:
        """Whether there is such an event by that actor."""
        return any((k, a) == (kind, actor) for k, _, _, _, a in self.events)

    def picture(self) -> dict[str, Any] | None:
        """Everything on record that the model knows of, as plain values; None: there is nothing."""
        if self.gone:
            return None
        return {
            "state": self.state,
            "epoch": self.epoch,
            "locked_by": self.attempt if self.held else None,
            "run_id": self.run_id,
            "late": self.late,
            "waits": self.is_claimable and not self.due,
            "failures": self.failures,
            "steps": {name: asdict(s) for name, s in self.steps.items()},
            "log": [asdict(e) for e in self.log],
            "events": self.events,
            "alerts": sorted(self.alerts),
        }

    # --- who may write ----------------------------------------------------------------------------------------

    @property
    def started(self) -> Hold:
        """The run that the last claim started."""
        return Hold(self.task_id, self.attempt, f"run of {self.attempt}", KNOWN)

    def is_held_by(self, hold: Hold) -> bool:
        """Whether this run holds the task: its attempt does, and no other run of the attempt has bound itself."""
        return (
            self.held
            and self.attempt == hold.locked_by
            and (self.run_id == hold.run_id or (self.run_id is None and hold.nonce == KNOWN))
        )

    def is_mine(self, hold: Hold, *states: TaskState) -> bool:
        """Whether this run may write: it holds the task, which is in one of these states, and is in time."""
        return self.is_held_by(hold) and self.state in states and not self.late

    def has_begun_by(self, step: str | None, state: StepState) -> bool:
        """Whether the newest attempt has brought a step into this state, and it is there still."""
        return step is not None and (self.steps[step].state, self.steps[step].epoch) == (state, self.epoch)

    def lost(self, hold: Hold) -> Told:
        """Why a write changed nothing: it came late, the task is to be undone, or somebody else moved it."""
        if self.is_held_by(hold):
            return Told(AttemptEnd.DEADLINE_PASSED)
        if self.epoch == hold.epoch and not self.held and self.state is _T.COMPENSATING:
            return Told(AttemptEnd.UNDO_REQUESTED)
        return Told(AttemptEnd.SUPERSEDED)

    def unless_said(self, hold: Hold, kind: EventKind, end: AttemptEnd) -> Told:
        """An attempt does this once: it is told so again, however often it asks."""
        return Told(end) if self.has_said(kind, hold.locked_by) else self.lost(hold)

    # --- how rows change --------------------------------------------------------------------------------------

    def move(self, kind: EventKind, actor: str, target: TaskState | None = None) -> None:
        """A transition, with its one event; into a state that needs a person with an alert."""
        before, self.state = self.state, target or self.state
        self.events.append((kind, before, self.state, self.epoch, actor))
        if kind not in NO_PROGRESS:
            self.refusals = 0
        if target in ALERTS:
            self.alerts.append(ALERTS[target])

    def let_go(self, *, due: bool = True) -> None:
        """Nobody holds it any more."""
        self.held, self.run_id, self.late, self.due = False, None, False, due

    def give_back(self, hold: Hold, delay_s: float) -> None:
        """Its holder lets go without a failure counted."""
        self.let_go(due=not delay_s)
        self.move(EventKind.RELEASED, hold.locked_by, _T.PENDING if self.state is _T.PROCESSING else None)

    def begin(self, name: str) -> bool:
        """A step is Running with its calls reserved and its undo logged, unless its budget is spent."""
        step, terms = self.steps[name], self.definition.step(name)
        if step.state not in (_S.NOT_STARTED, _S.RUNNING, _S.FAILED) or step.budget_left < 1:
            return False
        if self.is_blocked(name, undo=False):
            return False
        step.overdue &= self.has_begun_by(name, _S.RUNNING)
        step.unknown |= step.state is _S.RUNNING and step.reserved > 0
        step.state, step.epoch, step.gave_up = _S.RUNNING, self.epoch, False
        step.reserve(terms.calls)
        if terms.undo and not self.entry(name):
            self.log.append(Entry(name))
        return True

    def begin_undo(self, name: str) -> bool:
        """A step is Undoing with its calls reserved, unless its undo budget is spent."""
        step, entry, terms = self.steps[name], self.entry(name), self.definition.step(name).undo
        if entry is None or terms is None or step.undo_budget_left < 1 or self.is_blocked(name, undo=True):
            return False
        step.overdue &= self.has_begun_by(name, _S.UNDOING)
        step.failures = step.failures if step.state is _S.UNDOING else 0
        step.state, step.epoch, step.gave_up = _S.UNDOING, self.epoch, False
        step.reserve(terms.calls)
        entry.state, entry.attempts = _U.UNDOING, entry.attempts + 1
        return True
