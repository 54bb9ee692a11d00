"""What is found by itself: every module of a package of ours, and of those that an environment variable names."""

from __future__ import annotations

import importlib
import os
import pkgutil
from types import ModuleType

from domain.faults import UsageError


def modules_of(package: str, variable: str) -> list[ModuleType]:
    """The modules of `package`, then those of each package that `variable` names, separated by commas.

    Raises:
        UsageError: One that is named can't be loaded: says which, and why.
    """
    named = [name.strip() for name in os.environ.get(variable, "").split(",")]
    return [*_modules(package), *(m for name in named if name for m in _named(name, variable))]


def _named(package: str, variable: str) -> list[ModuleType]:
    try:
        return _modules(package)
    except (Exception, SystemExit) as error:  # whatever the code of others does while it is loaded
        raise UsageError(f"{variable}: package {package!r} can't be loaded: {type(error).__name__}: {error}") from error


def _modules(package: str) -> list[ModuleType]:
    root = importlib.import_module(package)
    if not hasattr(root, "__path__"):
        raise ImportError("it is a module; a package, which is a folder of modules, is expected")
    return [importlib.import_module(f"{package}.{m.name}") for m in pkgutil.iter_modules(root.__path__)]
