"""Where a command finds the stack: the environment, or what `up` wrote down about the embedded one."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from cli.output import print_note
from domain.faults import UsageError
from domain.ids import actor
from domain.text import clean
from runtime.settings import Settings, address, read_settings, unknown_settings
from runtime.shell import leave_shell_behind
from store.reads import Reads, open_reads
from store.schema import check_schema

ENVIRONMENT_FILE = "env.json"
"""In the state folder: a JSON object of environment variables, written by `up`."""


_TEMPORAL = ("ADDRESS", "NAMESPACE", "PROFILE", "CONFIG_FILE", "API_KEY", "TLS", "GRPC_META")
"""How the variables begin that lead to a Temporal server, after `TEMPORAL_`."""


def find_settings() -> Settings:
    """The settings of this process; those of the embedded stack where the environment names no state store.

    A stack is taken as a whole: its databases, its Temporal server, its services.

    Raises:
        UsageError: A setting can't be read, or leads away from the rest of the stack; names the variable.
    """
    settings = read_settings()
    for remark in unknown_settings():
        print_note(f"warning: {remark}")
    file = settings.state_dir / ENVIRONMENT_FILE
    if settings.database_url.get_secret_value():
        return settings
    if not file.exists():
        if "state_dir" in settings.model_fields_set and not settings.state_dir.is_dir():
            raise UsageError(f"SAS_STATE_DIR: there is no folder {str(settings.state_dir)!r}")
        return settings
    recorded = _recorded(file)
    if strangers := _leading_away(recorded):
        raise UsageError(
            f"{', '.join(strangers)}: set here, and not as the stack of {file} has it. Unset what is named to work on"
            " that stack, or set SAS_DATABASE_URL and all that belongs to it to work elsewhere"
        )
    leave_shell_behind()
    os.environ.update(recorded)
    return read_settings()


def _leading_away(recorded: Mapping[str, str]) -> list[str]:
    """Our variables that name a database or a Temporal server, or a key to it, and not that of the stack."""
    databases = tuple(n for n in recorded if n.endswith(("DATABASE_URL", "ORDERS_URL")))
    temporal = tuple(f"TEMPORAL_{part}" for part in _TEMPORAL) if "TEMPORAL_ADDRESS" in recorded else ()
    named = [n for n, value in os.environ.items() if value and n.startswith((*databases, *temporal))]
    return sorted(n for n in named if os.environ[n] != recorded.get(n))


def user() -> str:
    """Who runs this command: the system's word, not the environment's."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def requester(by: str = "") -> str:
    """Who asks, as the audit trail holds it: the person named by `--by`, or the user of this process."""
    return actor("cli", clean(by).strip()[:100] or user())


@asynccontextmanager
async def reading(settings: Settings) -> AsyncIterator[Reads]:
    """Reads on the state store, its schema checked.

    Raises:
        Unreachable: It has no address, does not answer, or has another schema version.
    """
    dsn = address(settings, "database_url")
    check_schema(dsn, "state")
    async with open_reads(dsn) as reads:
        yield reads


def _recorded(file: Path) -> dict[str, str]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} is no JSON object: remove it, and start the stack again with `python starter.py up`")
    return {str(name): str(value) for name, value in values.items()}
