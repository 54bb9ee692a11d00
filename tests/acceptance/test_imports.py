"""What a command loads: what it needs, so that it answers at once."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest

from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.settings import environment

HEAVY = {"temporalio", "sqlmodel", "sqlalchemy", "alembic", "fastapi", "uvicorn", "httpx", "structlog", "psutil"}
TO_LOOK = {"pydantic", "psycopg", "rich"}
PROBE = """
import sys, time
from cli.app import run_app
from cli.commands import app
code = run_app(app, sys.argv[1:])
tops = sorted({name.partition(".")[0] for name in sys.modules})
print(time.process_time(), *tops, file=sys.stderr)
sys.exit(code)
"""


async def loaded(settings: Settings, *arguments: str) -> tuple[float, set[str]]:
    """Seconds of CPU that a command takes, and the packages that it has loaded."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROBE, *arguments),
        env={**os.environ, **environment(settings), "TEMPORAL_NAMESPACE": "default"},
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    seconds, *names = err.decode().splitlines()[-1].split()
    return float(seconds), set(names)


@pytest.mark.failure(105)
async def test_help_loads_neither_a_command_nor_what_one_needs(settings: Settings) -> None:
    seconds, names = await loaded(settings, "--help")
    assert names & (HEAVY | TO_LOOK | {"store", "runtime", "definitions"}) == set()
    assert seconds < 1, "0.2 s on a machine that is idle"


@pytest.mark.failure(105)
@pytest.mark.parametrize("command", ["list", "show", "watch", "wait", "dead-letters", "repair", "services"])
async def test_command_that_looks_loads_no_more_than_the_store_needs(
    bench: Bench, settings: Settings, order: dict[str, Any], task_id: str, command: str
) -> None:
    await bench.submit(order, task_id)
    await bench.stores.store.claims.claim("gone", [("order", 1)], 1)
    words = {"show": [task_id], "wait": ["--help"], "watch": ["--help"], "repair": ["--help"]}.get(command, [])
    seconds, names = await loaded(settings, command, *words)
    assert names & HEAVY == set()
    assert names >= TO_LOOK
    assert seconds < 2.5, "0.7 s on a machine that is idle"
