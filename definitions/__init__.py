"""The task definitions: the samples are in this package, and one's own in packages beside it.

Found are those of every module behind an entry point of the group `sas.definitions`, of the packages that
`SAS_DEFINITIONS` names, separated by commas, and with `SAS_SAMPLES=1` of this package.
"""

from __future__ import annotations

from functools import cache

from activities.agents import catalogue
from definitions.agent_checks import misfits
from domain.definition import Definition, Registry
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
    problems = [*_twice(list(places.values())), *(p for d, _ in places.values() for p in misfits(d, catalogue()))]
    if problems:
        raise DefinitionError("; ".join(problems))
    return Registry([d for d, _ in places.values()])


def _twice(found: list[tuple[Definition, str]]) -> list[str]:
    """What several modules define."""
    modules: dict[str, list[str]] = {}
    for definition, module in found:
        modules.setdefault(f"{definition.name} v{definition.version}", []).append(module)
    return [f"definition {name} is in {' and in '.join(m)}" for name, m in modules.items() if len(m) > 1]
