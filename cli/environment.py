"""Where a command finds the stack: the environment, or what `up` wrote down about the embedded one."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError
from temporalio.envconfig import ClientConfig

from domain.faults import UsageError
from domain.text import clean
from runtime.parts import address
from runtime.settings import Settings
from store.reads import Reads, open_reads
from store.schema import check_schema

ENVIRONMENT_FILE = "env.json"
"""In the state folder: a JSON object of environment variables, written by `up`."""


def settings() -> Settings:
    """The settings of this process; those of the embedded stack where the environment names no state store.

    Raises:
        UsageError: A setting can't be read; names the variable.
    """
    found = _read_settings()
    if found.database_url.get_secret_value() or not (found.state_dir / ENVIRONMENT_FILE).exists():
        return found
    for name, value in _recorded(found.state_dir / ENVIRONMENT_FILE).items():
        if not os.environ.get(name):
            os.environ[name] = value
    return _read_settings()


def namespace() -> str:
    """The Temporal namespace that links lead to."""
    return ClientConfig.load_client_connect_config().get("namespace") or "default"


def user() -> str:
    """Who runs this command, as far as the system knows."""
    try:
        return clean(getpass.getuser())[:100] or "unknown"
    except (KeyError, OSError):
        return "unknown"


def requester(by: str = "") -> str:
    """Who asks, as the audit trail holds it: the person named by `--by`, or the user of this process."""
    return f"cli:{clean(by).strip()[:100] or user()}"


@asynccontextmanager
async def reading(found: Settings) -> AsyncIterator[Reads]:
    """Reads on the state store, its schema checked.

    Raises:
        Unreachable: It has no address, does not answer, or has another schema version.
    """
    dsn = address(found, "database_url")
    check_schema(dsn, "state")
    async with open_reads(dsn) as reads:
        yield reads


def _read_settings() -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        problems = (
            f"SAS_{'__'.join(str(x) for x in e['loc']).upper()}: {e['msg']}, not {e['input']!r}" for e in error.errors()
        )
        raise UsageError("; ".join(problems)) from error


def _recorded(file: Path) -> dict[str, str]:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{file} is no JSON object: remove it, and start the stack again with `python starter.py up`")
    return {str(name): str(value) for name, value in values.items()}
