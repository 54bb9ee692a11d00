"""Secrets that are planted in every setting: whatever fails, and whoever prints it, shows none of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pytest
from temporalio.client import Client

from domain.states import TaskState
from runtime.roles import Role
from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.databases import Databases
from testing.settings import environment
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.failures.test_security import rows
from tests.workers import WorkerProcess

CANARY = "kestrel7"
LOGIN = f"{CANARY}-user:{CANARY}%2Fpassword"


def planted(settings: Settings) -> dict[str, str]:
    """The environment of a process in which each address and each secret holds a canary; all of it is wrong."""
    found = {**os.environ, **environment(settings), "SAS_LOG_LEVEL": "DEBUG", "PYTHONPATH": str(ROOT)}
    for name, value in found.items():
        if name.startswith("SAS_") and "://" in value:
            parts = urlsplit(value)
            login = LOGIN if parts.scheme == "http" else f"{parts.username}:{CANARY}-password"
            found[name] = parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()
        elif "SECRET" in name:
            found[name] = f"{CANARY}-secret" * 3
    return found | {"SAS_SERVICES__STOCK": f"http://{LOGIN}@127.0.0.1:1", "TEMPORAL_API_KEY": f"{CANARY}-key"}


async def said(environ: dict[str, str], *arguments: str) -> str:
    """Everything that a command prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(90):
            words, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert words
    return words.decode()


@pytest.mark.failure(112)
@pytest.mark.demand("H3")
@pytest.mark.parametrize(
    "arguments",
    [
        ("starter.py", "doctor"),
        ("starter.py", "doctor", "-o", "json"),
        ("starter.py", "list"),
        ("worker.py", "--roles", "scheduler"),
        ("worker.py", "--roles", "supervisor"),
        ("worker.py", "--roles", "agents"),
    ],
    ids=" ".join,
)
async def test_command_that_can_reach_nothing_shows_no_secret(
    settings: Settings, client: Client, arguments: tuple[str, ...]
) -> None:
    assert CANARY not in await said(planted(settings), *arguments)


@pytest.mark.failure(112)
async def test_uncaught_error_is_shown_without_secrets(settings: Settings, client: Client) -> None:
    code = """
from runtime.logging import set_up_logging
from runtime.settings import read_settings
settings = read_settings()
set_up_logging("DEBUG")
raise RuntimeError(settings.database_url.get_secret_value(), settings.callback_secret.get_secret_value())
"""
    words = await said(planted(settings), "-c", code)
    assert "RuntimeError" in words
    assert CANARY not in words


@pytest.mark.failure(112)
@pytest.mark.demand("H3")
async def test_login_in_a_service_address_is_used_and_shown_nowhere(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    """The line to one service is cut for two attempts; the other services are reached with their logins."""
    services = {s: url.replace("://", f"://{LOGIN}@") for s, url in simulators.services.items()}
    services["payments"] = f"http://{LOGIN}@127.0.0.1:1"
    settings = bench.settings.model_copy(update={"services": services, "log_level": "DEBUG"})
    with WorkerProcess(settings) as worker:
        await bench.submit(order, task_id)

        async def released() -> bool:
            return "released" in [e.kind for e in (await bench.page(task_id)).events]

        await eventually(released)  # a service that can't be reached costs its task nothing
        attempts = [bench.client.get_workflow_handle(a) for a in await bench.attempts(task_id)]
        histories = [str((await a.fetch_history()).events) for a in attempts]
        assert await worker.stop() == 0
    async with bench.worker(Role.SCHEDULER, Role.AGENTS):
        assert await bench.settled_with_sweeps(task_id) is TaskState.PROCESSED
    logs = "".join(f.read_text() for f in settings.state_dir.glob("worker-*.log"))
    kept = rows(databases.owner, "task", "step", "event", "alert", "compensation", "service", "service_event")
    shown = {"logs": logs, "rows": kept, "histories": "".join(histories)}
    assert [name for name, text in shown.items() if not text] == []
    assert [name for name, text in shown.items() if CANARY in text] == []
