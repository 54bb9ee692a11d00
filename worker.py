"""A worker process: `python worker.py [--roles scheduler,agents,supervisor,callbacks] [--agents payments,…]`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from activities.agents import all_agents
from domain.faults import Unreachable, UsageError
from runtime.embedded.parent import die_with_recorded_parent
from runtime.logs import set_up_logging
from runtime.roles import Role, run_roles
from runtime.settings import read_settings, unknown_settings

SERVICES = ",".join(a.service for a in all_agents())


def main(
    roles: Annotated[str, typer.Option(help="what this process does, separated by commas")] = ",".join(Role),
    agents: Annotated[str, typer.Option(help="services whose Agents it runs, in the role `agents`")] = SERVICES,
) -> None:
    """Run workers until SIGTERM or Ctrl-C, then let running steps finish."""
    die_with_recorded_parent()
    try:
        settings = read_settings()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    set_up_logging(settings.log_level)
    for remark in unknown_settings():
        print(f"warning: {remark}", file=sys.stderr)
    try:
        wanted = {Role(r.strip()) for r in roles.split(",") if r.strip()}
    except ValueError as error:
        print(f"error: --roles: {error} (there are: {', '.join(Role)})", file=sys.stderr)
        raise typer.Exit(2) from error
    if not wanted:
        print(f"error: --roles: none is named (there are: {', '.join(Role)})", file=sys.stderr)
        raise typer.Exit(2)
    try:
        asyncio.run(run_roles(settings, wanted, {a.strip() for a in agents.split(",") if a.strip()}))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except Unreachable as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(5) from error


if __name__ == "__main__":
    try:
        typer.run(main)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)
