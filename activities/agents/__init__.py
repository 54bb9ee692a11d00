"""The Agents: every module of this package holds the Agent of one remote service, and is found by itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from activities.agent import Action, Agent


@cache
def all_agents() -> tuple[type[Agent], ...]:
    """The Agent classes of this package, by service name."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    found = {
        c.service: c
        for m in modules
        for c in vars(m).values()
        if inspect.isclass(c) and issubclass(c, Agent) and c is not Agent and c.__module__ == m.__name__
    }
    return tuple(found[s] for s in sorted(found))


@cache
def catalogue() -> dict[str, Action]:
    """Every action that a definition may name."""
    return {a.name: a for agent in all_agents() for a in agent.actions()}
