"""The Agents: the samples' are in this package, one module a remote service, and one's own in packages beside it.

Found are those of every module behind an entry point of the group `sas.agents`, of the packages that `SAS_AGENTS`
names, separated by commas, and with `SAS_SAMPLES=1` of this package.
"""

from __future__ import annotations

import inspect
from functools import cache

from activities.agent import Action, Agent
from domain.faults import DefinitionError
from domain.packages import modules_of


@cache
def all_agents() -> tuple[type[Agent], ...]:
    """The Agent classes there are, by service name.

    Raises:
        DefinitionError: Two are for the same service.
        UsageError: A package can't be loaded.
    """
    found: dict[str, type[Agent]] = {}
    for module in modules_of(__name__, "sas.agents", "SAS_AGENTS"):
        for agent in vars(module).values():
            if inspect.isclass(agent) and issubclass(agent, Agent) and agent.__module__ == module.__name__:
                other = found.setdefault(agent.service, agent)
                if other is not agent:
                    places = f"{other.__module__} and in {agent.__module__}"
                    raise DefinitionError(f"the Agent of service {agent.service} is in {places}")
    return tuple(found[s] for s in sorted(found))


@cache
def catalogue() -> dict[str, Action]:
    """Every action that a definition may name."""
    return {a.name: a for agent in all_agents() for a in agent.actions()}
