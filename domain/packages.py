"""What is found by itself: installed packages, packages that a variable names, and the samples on request."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import ModuleType

from domain.faults import UsageError

SAMPLES = "SAS_SAMPLES"
"""The variable that asks for the samples: 1; 0 or empty for not; `only` for nothing else."""


def modules_of(samples: str, group: str, variable: str) -> list[ModuleType]:
    """The modules to search, each once.

    Args:
        samples: Our own package, for whoever asks for the samples.
        group: Entry points of installed packages. variable: Names further packages, separated by commas.

    Raises:
        UsageError: One of them can't be loaded: says which, and why.
    """
    wanted = os.environ.get(SAMPLES) or "0"
    if wanted not in ("0", "1", "only"):
        raise UsageError(f"{SAMPLES}: must be 1, 0 or only, not {wanted!r}")
    found = [] if wanted == "0" else _modules(samples)
    if wanted != "only":
        found += [m for where, name in _named(group, variable) for m in _loaded(where, name)]
    return list({m.__name__: m for m in found}.values())


def _named(group: str, variable: str) -> Iterator[tuple[str, str]]:
    """Who names a package, and which."""
    for point in sorted(entry_points(group=group)):
        yield (
            f"entry point {point.name!r} of {point.dist.name if point.dist else 'nobody'} in group {group}",
            point.value,
        )
    for name in filter(None, map(str.strip, os.environ.get(variable, "").split(","))):
        yield f"{variable}: package {name!r}", name


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
