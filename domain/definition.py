"""Task definitions: what the steps of a task are, and what happens when they fail.

A definition is data plus pure functions. It is checked when it is made: a definition that exists is one
that may be run. Its policies, without the functions, also go to the `definition` table, so that the Supervisor needs
no code of a definition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel

from domain.definition_checks import problems_of
from domain.faults import DefinitionError
from domain.messages import Json

Results = Mapping[str, Json]
"""Recorded results of the steps that are done, by step name."""

FollowUp = Literal["error", "undo"]


@dataclass(frozen=True)
class Undo:
    """How a step is undone. The request is built from the business record alone: no result may be needed.

    Attributes:
        action: `service.method` of the Agent that undoes it.
        request: Pure function of the record; None where the keys of the original say all.
        calls: Allowance of one attempt. budget: calls in all, until an operator grants more.
        quarantine: For a service that keeps no tombstones, and only for such a one: undo begins once no call of the
            step can be on its way any more, and is done again this long afterwards, in case one was all the same.
    """

    action: str
    request: Callable[[Any], BaseModel] | None = None
    calls: int = 5
    budget: int = 30
    quarantine: timedelta | None = None


@dataclass(frozen=True)
class Step:
    """One unit of work that one Agent does.

    Attributes:
        name: Unique within the definition; part of the idempotency key.
        action: `service.method`, as in `payments.charge`.
        request: Pure function of the record and of the results of earlier steps.
        within: Complete-within allowance of one attempt.
        undo: How it is undone; None only for a pivot, a step behind one, or a step without effect.
        no_effect: There is nothing to undo (a message that was sent).
        pivot: Once it has begun, the task can only go forward.
        queue: Task queue of the worker that does it; None runs it inline, in the Scheduler's worker.
        answers_later: The service answers by callback; needs a queue.
        calls: Calls of one attempt. budget: calls in all attempts.
        after: Steps that must be done first; None means the one before it in the list.
        on_refused: What follows a permanent fault; None takes the definition's.
    """

    name: str
    action: str
    request: Callable[[Any, Results], BaseModel]
    within: timedelta
    undo: Undo | None = None
    no_effect: bool = False
    pivot: bool = False
    queue: str | None = None
    answers_later: bool = False
    calls: int = 3
    budget: int = 9
    after: tuple[str, ...] | None = None
    on_refused: FollowUp | None = None

    @property
    def actions(self) -> list[str]:
        """What it asks of Agents: its action, and its undo's."""
        return [self.action, *([self.undo.action] if self.undo else [])]

    @property
    def services(self) -> set[str]:
        """The remote services whose Agents it asks."""
        return {action.partition(".")[0] for action in self.actions}


@dataclass(frozen=True)
class Backoff:
    """Delay before recovery number n: `first * factor ** (n - 1)`, at most `most`."""

    first: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    most: timedelta = timedelta(minutes=5)


@dataclass(frozen=True)
class ExtendedWait:
    """A long wait before a last series of tries, in case a longer fault clears: so many times, so long each."""

    wait: timedelta
    times: int = 1


@dataclass(frozen=True)
class Definition:
    """A task type. Immutable once released: a change is a new version, and both stay registered.

    Attributes:
        record: Model of the business record.
        threshold: Failures of a step in a row that the Supervisor answers with a retry.
        on_refused: What follows a permanent fault, where the step says nothing else.
        on_spent: What follows a spent threshold or budget, after the extended waits, if any.
        most_attempts: Bound on attempts in a row that expire without progress, for a task that kills its workers.
    """

    name: str
    version: int
    record: type[BaseModel]
    steps: tuple[Step, ...]
    threshold: int = 2
    backoff: Backoff = field(default_factory=Backoff)
    extended_wait: ExtendedWait | None = None
    on_refused: FollowUp = "error"
    on_spent: FollowUp = "undo"
    most_attempts: int = 1_000
    data_class: str = "internal"

    def __post_init__(self) -> None:
        problems = problems_of(self)
        if problems:
            raise DefinitionError(f"definition {self.name} v{self.version}: " + "; ".join(problems))

    def find(self, name: str) -> Step | None:
        """The step of that name, if there is one."""
        return next((s for s in self.steps if s.name == name), None)

    def step(self, name: str) -> Step:
        """The step of that name; KeyError if there is none."""
        found = self.find(name)
        if found is None:
            raise KeyError(f"definition {self.name} v{self.version} has no step {name}")
        return found

    def checked(self, record: Json) -> Json:
        """The record as its model writes it. Strictly read, as JSON: `true` is no 1, `"2999"` no 2999, 1.0 no integer.

        Raises:
            ValidationError: The model refuses it.
        """
        return self.record.model_validate_json(json.dumps(record), strict=True).model_dump(mode="json")

    def after(self, step: Step) -> tuple[str, ...]:
        """Names of the steps that must be done before this one."""
        if step.after is not None:
            return step.after
        position = self.steps.index(step)
        return (self.steps[position - 1].name,) if position else ()

    def follower(self, step: Step) -> Step | None:
        """The step that may begin in the very transaction that completes `step`: its only follower, without a join."""
        followers = [s for s in self.steps if step.name in self.after(s)]
        if len(followers) == 1 and self.after(followers[0]) == (step.name,):
            return followers[0]
        return None

    def refused(self, step: Step) -> FollowUp:
        """What follows a permanent fault of this step."""
        return step.on_refused or self.on_refused

    def policies(self) -> Json:
        """Everything but the functions, as JSON: what the `definition` table holds and the Supervisor reads."""
        wait = self.extended_wait
        return {
            "threshold": self.threshold,
            "backoff_s": [
                self.backoff.first.total_seconds(),
                self.backoff.factor,
                self.backoff.most.total_seconds(),
            ],
            "extended_wait_s": wait.wait.total_seconds() if wait else None,
            "extended_waits": wait.times if wait else 0,
            "on_refused": self.on_refused,
            "on_spent": self.on_spent,
            "most_attempts": self.most_attempts,
            "steps": {s.name: _step_policies(self, s, n) for n, s in enumerate(self.steps)},
        }

    def agrees_with(self, released: Json) -> bool:
        """Whether policies on record, perhaps of another release of this software, are this definition's.

        A word that only one of the two releases knows says nothing: the definition can't but leave it at its default.
        """
        own = self.policies()
        return own["steps"].keys() == released["steps"].keys() and _agree(own, released)


def _agree(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_agree(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)


def _step_policies(definition: Definition, step: Step, position: int) -> Json:
    return {
        "position": position,
        "action": step.action,
        "service": step.action.partition(".")[0],
        "after": list(definition.after(step)),
        "within_s": step.within.total_seconds(),
        "calls": step.calls,
        "budget": step.budget,
        "undo": step.undo.action if step.undo else None,
        "undo_budget": step.undo.budget if step.undo else 0,
        "quarantine_s": step.undo.quarantine.total_seconds() if step.undo and step.undo.quarantine else None,
        "pivot": step.pivot,
        "queue": step.queue,
        "on_refused": definition.refused(step),
    }


class Registry:
    """The definitions that a process has loaded: immutable, by name and version."""

    def __init__(self, definitions: Sequence[Definition]) -> None:
        self._by_key: Mapping[tuple[str, int], Definition] = {(d.name, d.version): d for d in definitions}
        if len(self._by_key) != len(definitions):
            keys = [(d.name, d.version) for d in definitions]
            twice = sorted({k for k in keys if keys.count(k) > 1})
            raise DefinitionError(f"definitions registered twice: {twice}")

    def __iter__(self) -> Any:
        return iter(self._by_key.values())

    def find(self, name: str, version: int) -> Definition | None:
        """The definition of that name and version, or None if this process has not loaded it."""
        return self._by_key.get((name, version))

    def newest(self, name: str) -> Definition | None:
        """The newest version of a definition, for new submissions."""
        versions = [v for n, v in self._by_key if n == name]
        return self._by_key[(name, max(versions))] if versions else None

    def names(self) -> list[str]:
        """Names of all definitions, sorted."""
        return sorted({n for n, _ in self._by_key})
