"""What does not fit between a definition and the Agents that it names: tables of what is said, and of when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_type_hints

from pydantic import BaseModel

from activities.agent import Action
from domain.definition import Definition, Step, Undo
from domain.definition_checks import that_hold


def misfits(definition: Definition, actions: Mapping[str, Action]) -> list[str]:
    """What does not fit, each naming the step and the value."""
    where = f"definition {definition.name} v{definition.version}, step"
    return [f"{where} {s.name}: {problem}" for s in definition.steps for problem in _misfits(s, actions)]


def _misfits(step: Step, actions: Mapping[str, Action]) -> list[str]:
    known = ", ".join(sorted(actions)) or "none"
    if unknown := [f"no Agent has an action {a!r} (there are: {known})" for a in step.actions if a not in actions]:
        return unknown
    done = actions[step.action]
    rules = _rules_of_doing(step, done)
    if step.undo:
        rules |= _rules_of_undoing(step, step.undo, done, actions[step.undo.action])
    return that_hold(rules)


def _rules_of_doing(step: Step, done: Action) -> dict[str, bool]:
    return {
        f"{done.name} takes {_name(done.request)}, not what its request returns": (
            _returned(step.request) is not done.request
        ),
        f"{done.name} takes what a step returned: it can only undo": done.original is not None,
        f"service {done.service} is asked by key, and a question is a call: its allowance must be at least 2 calls, not"
        f" {step.calls}": done.can_ask and step.calls < 2,
    }


def _rules_of_undoing(step: Step, undo: Undo, done: Action, undone: Action) -> dict[str, bool]:
    return {
        f"{undone.name} takes {_name(undone.request)}, not what its request returns": (
            _returned(undo.request) is not undone.request
        ),
        f"{undone.name} takes what another step returns: a {_name(undone.original)}": (
            undone.original is not None and (undone.original, undone.service) != (done.result, done.service)
        ),
        f"service {undone.service} keeps tombstones, its undo needs no quarantine": (
            undone.keeps_tombstones and undo.quarantine is not None
        ),
        f"service {undone.service} keeps no tombstones, its undo needs a quarantine": (
            not undone.keeps_tombstones and undo.quarantine is None
        ),
        "what is done and undone on one queue must be of one service, not"
        f" {sorted({done.service, undone.service})}": step.queue is not None and done.service != undone.service,
    }


def _returned(request: Callable[..., BaseModel] | None) -> type[BaseModel] | None:
    """What a request function says that it returns."""
    return get_type_hints(request).get("return") if request else None


def _name(model: type[BaseModel] | None) -> str:
    return model.__name__ if model else "nothing"
