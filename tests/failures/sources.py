"""The production code as it is written, for rules that no run can show."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

from testing import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
REHEARSAL = {"chaos", "testing"}
"""Folders in the wheel that only a rehearsal runs."""

SHIPPED: list[str] = [*sorted({*_WHEEL["packages"]} - REHEARSAL), *(f"{module}.py" for module in _WHEEL["modules"])]
"""All other folders and files of code in the wheel."""


def sources(*places: str) -> Iterator[tuple[str, ast.Module]]:
    """Path and syntax tree of every module in these folders and files; of all that is shipped, if none is named."""
    for place in places or SHIPPED:
        found = ROOT / place
        for file in [found] if found.is_file() else sorted(found.rglob("*.py")):
            yield str(file.relative_to(ROOT)), ast.parse(file.read_text())


def imported(tree: ast.Module) -> set[str]:
    """What a module imports, each by its full name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def used(tree: ast.Module) -> set[str]:
    """Every name and attribute that a module mentions."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
