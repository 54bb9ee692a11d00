"""The task definitions: the samples are in this package, and one's own in packages beside it.

Found are those of every module behind an entry point of the group `sas.definitions`, of the packages that
`SAS_DEFINITIONS` names, separated by commas, and with `SAS_SAMPLES=1` of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import get_type_hints

from pydantic import BaseModel

from activities.agents import catalogue
from domain.definition import Definition, Registry, Step
from domain.faults import DefinitionError, UsageError
from domain.packages import modules_of


@cache
def registry() -> Registry:
    """The definitions of this process, checked against the Agents that there are.

    Raises:
        DefinitionError: A definition is there twice, names an action that no Agent has, builds a request of another
            type, or does not fit what the Agent says of its service.
        UsageError: None is found, or a package can't be loaded.
    """
    places: dict[int, tuple[Definition, str]] = {}
    for module in modules_of(__name__, "sas.definitions", "SAS_DEFINITIONS"):
        for found in vars(module).values():
            if isinstance(found, Definition):
                places.setdefault(id(found), (found, module.__name__))
    if not places:
        raise UsageError(
            "no definition is found: install a package with an entry point in the group sas.definitions, name a package"
            " in SAS_DEFINITIONS, or set SAS_SAMPLES=1 for the samples"
        )
    problems = [*_twice(list(places.values())), *(p for d, _ in places.values() for p in _problems(d))]
    if problems:
        raise DefinitionError("; ".join(problems))
    return Registry([d for d, _ in places.values()])


def _twice(found: list[tuple[Definition, str]]) -> list[str]:
    """What several modules define."""
    modules: dict[str, list[str]] = {}
    for definition, module in found:
        modules.setdefault(f"{definition.name} v{definition.version}", []).append(module)
    return [f"definition {name} is in {' and in '.join(m)}" for name, m in modules.items() if len(m) > 1]


def _problems(definition: Definition) -> list[str]:
    """What does not fit between a definition and the Agents."""
    where = f"definition {definition.name} v{definition.version}, step"
    return [f"{where} {s.name}: {problem}" for s in definition.steps for problem in _step_problems(s)]


def _step_problems(step: Step) -> list[str]:
    actions = catalogue()
    found = []
    wanted: list[tuple[str, Callable[..., BaseModel] | None]] = [(step.action, step.request)]
    if step.undo:
        wanted.append((step.undo.action, step.undo.request))
    for name, request in wanted:
        if name not in actions:
            known = ", ".join(sorted(actions)) or "none"
            found.append(f"no Agent has an action {name!r} (there are: {known})")
        elif (taken := actions[name].request) is not (get_type_hints(request).get("return") if request else None):
            what = taken.__name__ if taken else "nothing"
            found.append(f"{name} takes {what}, not what its request returns")
    if step.action in actions and actions[step.action].can_ask and step.calls < 2:
        found.append(
            f"service {actions[step.action].service} is asked by key, and a question is a call:"
            f" its allowance must be at least 2 calls, not {step.calls}"
        )
    if step.undo and step.undo.action in actions:
        service, kept = actions[step.undo.action].service, actions[step.undo.action].keeps_tombstones
        if kept is (step.undo.quarantine is not None):
            found.append(
                f"service {service} keeps tombstones, its undo needs no quarantine"
                if kept
                else f"service {service} keeps no tombstones, its undo needs a quarantine"
            )
    if step.action in actions and actions[step.action].original:
        found.append(f"{step.action} takes what a step returned: it can only undo")
    if step.undo and step.action in actions and step.undo.action in actions:
        done, undone = actions[step.action], actions[step.undo.action]
        if undone.original and (undone.original, undone.service) != (done.result, done.service):
            found.append(f"{undone.name} takes what another step returns: a {undone.original.__name__}")
    services = {actions[a].service for a in step.actions if a in actions}
    if step.queue and len(services) > 1:
        found.append(f"what is done and undone on one queue must be of one service, not {sorted(services)}")
    return found
