"""The Agents: every module of this package holds the Agent of one remote service, and is found by itself.

`SAS_AGENTS` names further packages to search, separated by commas, for Agents kept elsewhere.
"""

from __future__ import annotations

import inspect
from functools import cache

from activities.agent import Action, Agent
from domain.packages import modules_of


@cache
def all_agents() -> tuple[type[Agent], ...]:
    """The Agent classes there are, by service name.

    Raises:
        UsageError: A package that `SAS_AGENTS` names can't be loaded.
    """
    found = {
        c.service: c
        for m in modules_of(__name__, "SAS_AGENTS")
        for c in vars(m).values()
        if inspect.isclass(c) and issubclass(c, Agent) and c.__module__ == m.__name__
    }
    return tuple(found[s] for s in sorted(found))


@cache
def catalogue() -> dict[str, Action]:
    """Every action that a definition may name."""
    return {a.name: a for agent in all_agents() for a in agent.actions()}
