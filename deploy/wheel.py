"""Builds the wheel: everything under the one name `sas`, which a checkout does without.

In a checkout the folders are the top-level packages, and `store` is imported as `store`. Installed beside packages of
others, such names would collide. So the build moves them into `sas`, and rewrites what names them: the import
statements, found by the parser, and the two commands in what is said to people.
"""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAMESPACE = "sas"
ABOUT = '"""The Scheduler Agent Supervisor pattern; see `sas.domain.definition` and `sas.activities.agent`."""\n'
COMMANDS = {
    "python starter.py": "sas",
    "python worker.py": "sas-worker",
    "starter.py": "sas",
    "worker.py": "sas-worker",
}


class Namespace(BuildHookInterface):  # type: ignore[misc] # hatchling is there where a wheel is built
    """Puts the files that the wheel is made of together. `config` names them: packages, modules, data."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write them to a folder that lasts as long as the build."""
        if version == "editable":
            raise ValueError("a checkout is not installed: run it from its folder, or install the wheel")
        root, self._made = Path(self.root), Path(mkdtemp())
        put_together(root, self._made, self.config["packages"], self.config["modules"], self.config["data"])
        build_data["force_include"][str(self._made)] = NAMESPACE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove that folder."""
        shutil.rmtree(self._made)


def put_together(root: Path, made: Path, packages: list[str], modules: list[str], data: list[str]) -> None:
    """The content of the package `sas`, from that of a checkout."""
    (made / "__init__.py").write_text(ABOUT, encoding="utf-8")
    for folder in (*packages, *data):
        shutil.copytree(root / folder, made / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for module in modules:
        shutil.copy(root / f"{module}.py", made)
    names = {*packages, *modules}
    for path in made.rglob("*.py"):
        path.write_text(rewritten(path.read_text(encoding="utf-8"), names), encoding="utf-8")


def rewritten(source: str, names: set[str]) -> str:
    """A module's source, with our packages and commands by the names that they have once installed.

    Raises:
        ValueError: It imports one of them in a form that can't be moved, such as `import store.tables`.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(level=0, module=str(module)) if module.partition(".")[0] in names:
                old, new = f"from {module}", f"from {NAMESPACE}.{module}"
            case ast.Import(names=[ast.alias(name, None)]) if name in names:
                old, new = f"import {name}", f"from {NAMESPACE} import {name}"
            case ast.Import(names=aliases) if any(a.name.partition(".")[0] in names for a in aliases):
                raise ValueError(f"line {node.lineno}: write `from … import …`")
            case _:
                continue
        start = node.col_offset
        line = lines[node.lineno - 1]
        if not line[start:].startswith(old):
            raise ValueError(f"line {node.lineno}: can't find {old!r} in it")
        lines[node.lineno - 1] = line[:start] + new + line[start + len(old) :]
    return re.sub("|".join(map(re.escape, COMMANDS)), lambda found: COMMANDS[found[0]], "".join(lines))
