"""A worker process: `python worker.py [--roles scheduler,agents,supervisor,callbacks] [--agents payments,…]`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from activities.agents import all_agents
from definitions import registry
from domain.faults import Unreachable, UsageError
from runtime.logging import set_up_logging
from runtime.roles import Role, run_roles
from runtime.settings import read_settings, unknown_settings

Names = Annotated[str | None, typer.Option(help="services whose Agents it runs, in the role `agents` [default: all]")]


def main(
    roles: Annotated[str, typer.Option(help="what this process does, separated by commas")] = ",".join(Role),
    agents: Names = None,
) -> None:
    """Run workers until SIGTERM or Ctrl-C, then let running steps finish."""
    try:
        _run(roles, agents)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except Unreachable as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(5) from error


def _run(roles: str, agents: str | None) -> None:
    settings = read_settings()
    set_up_logging(settings.log_level)
    for remark in unknown_settings():
        print(f"warning: {remark}", file=sys.stderr)
    wanted = {Role(r) for r in _named("--roles", roles, list(Role))}
    if wanted & {Role.SCHEDULER, Role.AGENTS}:
        registry()  # a definition that must not be run is said before anything is connected to
    services = [a.service for a in all_agents()]
    asyncio.run(run_roles(settings, wanted, set(services if agents is None else _named("--agents", agents, services))))


def _named(option: str, given: str, known: list[str]) -> set[str]:
    """The names in a list with commas; at least one, and each of them known."""
    names = {name.strip() for name in given.split(",") if name.strip()}
    if unknown := sorted(names - set(known)):
        raise UsageError(f"{option}: there is no {', '.join(map(repr, unknown))} (there are: {', '.join(known)})")
    if not names:
        raise UsageError(f"{option}: none is named (there are: {', '.join(known)})")
    return names


def start() -> None:
    """Run `main` as a program, and end the process with it, whatever threads are left."""
    try:
        typer.run(main)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    start()
