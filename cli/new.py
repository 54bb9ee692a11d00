"""`new`: a package of one's own: a definition, an Agent, a test, and what containers need. Needs nothing that runs."""

from __future__ import annotations

from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from cli.app import ExitCode
from cli.commands import version
from cli.output import print_note
from domain.faults import Conflict, UsageError
from domain.ids import NAME
from domain.namespace import NAMESPACE

_TEMPLATES = Path(__file__).with_name("templates")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "{name}/agents.py": "agents.py",
    "{name}/definitions.py": "definitions.py",
    "tests/test_{name}.py": "test.py",
    "{name}.jsonl": "submission.jsonl",
    "Dockerfile": "Dockerfile",
    "compose.override.yml": "compose.override.yml",
}
"""Template by the path of what is made of it."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="of the package, its definition and its service")]
Folder = Annotated[Path | None, typer.Option("--folder", help="a folder that does not exist yet [default: NAME]")]


def new(name: Name, folder: Folder = None) -> ExitCode:
    """Write a package of your own that can be installed at once: a definition, an Agent, a test, a compose override."""
    _check(name)
    folder = folder or Path(name)
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise Conflict(f"{folder} exists: choose another --folder") from error
    words = {"name": name, "constant": name.upper(), "upper": name.upper(), "version": version()}
    words["title"] = "".join(part.capitalize() for part in name.split("_"))
    for path, template in _FILES.items():
        target = folder / path.format(name=name)
        target.parent.mkdir(exist_ok=True)
        text = (_TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        target.write_text(Template(text).substitute(words), encoding="utf-8")
    (folder / name / "__init__.py").touch()
    print_note(f"{folder} is ready. It imports `sas`, so install the wheel of this software, and then:")
    print_note(f"    pip install --editable {folder}; sas check {name}; pytest {folder}")
    return ExitCode.OK


def _check(name: str) -> None:
    if not NAME.fullmatch(name) or iskeyword(name):
        raise UsageError(f"NAME must match {NAME.pattern} and be no word of Python, not {name!r}")
    if name == NAMESPACE.rstrip(".") or find_spec(name) is not None:
        raise Conflict(f"there is a package {name!r} already: choose another NAME")
