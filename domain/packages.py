"""What is found by itself: installed packages, packages that a variable names, and the samples on request."""

from __future__ import annotations

import importlib
import os
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType

from pydantic import TypeAdapter, ValidationError

from domain.faults import UsageError

SAMPLES = "SAS_SAMPLES"


def modules_of(samples: str, group: str, variable: str) -> list[ModuleType]:
    """The modules to search, each once.

    Args:
        samples: Our own package, for whoever asks for the samples.
        group: Entry points of installed packages. variable: Names further packages, separated by commas.

    Raises:
        UsageError: One of them can't be loaded: says which, and why.
    """
    named = [name.strip() for name in os.environ.get(variable, "").split(",")]
    found = _modules(samples) if _are_samples_wanted() else []
    for point in sorted(entry_points(group=group)):
        where = f"entry point {point.name!r} of {point.dist.name if point.dist else 'nobody'} in group {group}"
        found += _loaded(where, point.value)
    for name in filter(None, named):
        found += _loaded(f"{variable}: package {name!r}", name)
    return list({m.__name__: m for m in found}.values())


def _are_samples_wanted() -> bool:
    given = os.environ.get(SAMPLES) or "0"
    try:
        return TypeAdapter(bool).validate_python(given)
    except ValidationError as error:
        raise UsageError(f"{SAMPLES}: must be 1 or 0, not {given!r}") from error


def _loaded(where: str, name: str) -> list[ModuleType]:
    try:
        return _modules(name)
    except (Exception, SystemExit) as error:  # whatever the code of others does while it is loaded
        raise UsageError(f"{where} can't be loaded: {type(error).__name__}: {error}") from error


def _modules(name: str) -> list[ModuleType]:
    """A module; of a package, its modules as well."""
    root = importlib.import_module(name)
    inner = pkgutil.iter_modules(getattr(root, "__path__", []))
    return [root, *(importlib.import_module(f"{name}.{m.name}") for m in inner)]
