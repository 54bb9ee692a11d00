"""The commands by name. The module of a command is loaded when that command is asked for, and no other is."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from domain.faults import UsageError
from domain.namespace import NAMESPACE

FROM_START_TO_END = {
    "up": "devstack.up:up",
    "demo": "devstack.demo.command:demo",
    "start": "cli.submit:start",
    "submit": "cli.submit:submit",
    "show": "cli.show:show",
    "watch": "cli.watch:watch",
    "wait": "cli.wait:wait",
    "list": "cli.list_tasks:list_tasks",
}
FOR_AUTHORS = {
    "new": "cli.new:new",
    "check": "cli.check:check",
    "rehearse": "chaos.rehearsal.command:rehearse",
}
FOR_OPERATORS = {
    "compensate": "cli.compensate:compensate",
    "repair": "cli.repair:repair",
    "resubmit": "cli.resubmit:resubmit",
    "dead-letters": "cli.dead_letters:dead_letters",
    "services": "cli.services:services",
    "supervise": "cli.supervise:supervise",
    "migrate": "cli.migrate:migrate",
    "doctor": "cli.doctor:doctor",
    "audit": "cli.audit:audit",
}
COMMANDS = FROM_START_TO_END | FOR_AUTHORS | FOR_OPERATORS
"""Where the function of each is."""

_TERMS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
_CONTEXT = {"help_option_names": ["-h", "--help"]}


class Listed(TyperCommand):
    """A command of which no more is known yet than its name and where it is."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """What it promises, at full length."""
        return _first_line(str(self.name))


class Commands(TyperGroup):
    """All commands; one is loaded when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": {name: Listed(name) for name in COMMANDS}})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called, loaded."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _loaded(str(name)), rest


def _print_version(asked: bool) -> None:
    if asked:
        print(version())
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Options before the command."""


app = typer.Typer(
    cls=Commands,
    help="Submit tasks, look at them, act on them, and run everything on this machine.",
    context_settings=_CONTEXT,
    callback=_options,
    **_TERMS,
)


def version() -> str:
    """This release: as the source tree says that it runs from, or as it was installed."""
    tree = Path(__file__).parents[1] / "pyproject.toml"
    if not tree.exists():
        return importlib.metadata.version("scheduler-agent-supervisor")
    return str(tomllib.loads(tree.read_text(encoding="utf-8"))["project"]["version"])


def _loaded(name: str) -> Any:
    module, function = _place_of(name)
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if find_spec(str(error.name).partition(".")[0]) is not None:
            raise
        raise UsageError(
            f"{name} needs the package {error.name!r}, which is not installed here: servers of one's own are for a"
            " desk (`make setup`), and not among the packages of production"
        ) from error
    alone = typer.Typer(context_settings=_CONTEXT, add_completion=False, **_TERMS)
    alone.command(name)(found)
    return typer.main.get_command(alone)


def _place_of(name: str) -> tuple[str, str]:
    module, _, function = COMMANDS[name].partition(":")
    return NAMESPACE + module, function


def _first_line(name: str) -> str:
    """What the command promises, read from its source without running it."""
    module, function = _place_of(name)
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(module)
    tree = ast.parse(Path(found.origin).read_bytes())
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    return (ast.get_docstring(node) or "").partition("\n")[0]
