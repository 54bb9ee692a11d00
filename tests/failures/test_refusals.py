"""A worker without what its role needs refuses to start and names it; one that can't work any more shows it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from temporalio.client import Client

from devstack.stack.environment import SERVICES
from domain.faults import Unreachable, UsageError
from runtime import roles
from runtime.deployment import deployment_of
from runtime.roles import Role, running
from runtime.settings import Settings
from testing import ROOT
from testing.bench import Bench
from testing.databases import Databases
from testing.settings import environment
from testing.waiting import eventually
from tests.workers import WorkerProcess


def without(settings: Settings, service: str) -> dict[str, Any]:
    """The change that leaves out the address of one service."""
    return {"services": {s: url for s, url in settings.services.items() if s != service}}


@pytest.mark.failure(95, 107)
@pytest.mark.parametrize(
    ("role", "missing", "named"),
    [
        (Role.SCHEDULER, "database_url", "SAS_DATABASE_URL"),
        (Role.SCHEDULER, "orders_url", "SAS_ORDERS_URL"),
        (Role.SCHEDULER, "stock", "SAS_SERVICES__STOCK"),
        (Role.SCHEDULER, "mail", "SAS_SERVICES__MAIL"),
        (Role.AGENTS, "payments", "SAS_SERVICES__PAYMENTS"),
        (Role.AGENTS, "cloud", "SAS_SERVICES__CLOUD"),
        (Role.AGENTS, "callback_secret", "SAS_CALLBACK_SECRET"),
        (Role.CALLBACKS, "callback_secret", "SAS_CALLBACK_SECRET"),
        (Role.AGENTS, "callback_secret 31", "SAS_CALLBACK_SECRET has fewer than 32 characters"),
        (Role.CALLBACKS, "callback_secret 31", "SAS_CALLBACK_SECRET has fewer than 32 characters"),
        (Role.CALLBACKS, "callback_secret_previous 1", "SAS_CALLBACK_SECRET_PREVIOUS has fewer than 32 characters"),
        (Role.CALLBACKS, "database_url", "SAS_DATABASE_URL"),
        (Role.SUPERVISOR, "supervisor_database_url", "SAS_SUPERVISOR_DATABASE_URL"),
    ],
)
async def test_worker_that_lacks_what_its_role_needs_names_it_and_ends(
    settings: Settings, client: Client, role: Role, missing: str, named: str
) -> None:
    name, _, length = missing.partition(" ")
    change = without(settings, name) if name in SERVICES else {name: SecretStr("x" * int(length or 0))}
    with pytest.raises((UsageError, Unreachable), match=named):
        async with running(settings.model_copy(update=change), client, {role}, set(SERVICES)):
            pass


@pytest.mark.failure(95)
@pytest.mark.demand("C6", "D3", "H5")
@pytest.mark.parametrize(
    ("role", "services", "needed"),
    [
        (Role.AGENTS, {"payments"}, {"services"}),
        (Role.SUPERVISOR, set(), {"supervisor_database_url"}),
        (Role.CALLBACKS, set(), {"database_url", "callback_secret", "callback_port", "callback_url"}),
        (Role.SCHEDULER, set(), {"database_url", "orders_url", "services"}),
    ],
)
async def test_each_role_starts_with_no_more_than_it_needs(
    settings: Settings, client: Client, role: Role, services: set[str], needed: set[str]
) -> None:
    bare = Settings.model_construct(**{name: getattr(settings, name) for name in needed})
    async with running(bare, client, {role}, services):
        pass


@pytest.mark.failure(95)
@pytest.mark.parametrize(
    ("role", "database"),
    [(Role.SCHEDULER, "state"), (Role.SCHEDULER, "orders"), (Role.CALLBACKS, "state"), (Role.SUPERVISOR, "state")],
)
async def test_worker_refuses_a_schema_of_another_version(
    settings: Settings, client: Client, databases: Databases, role: Role, database: str
) -> None:
    with psycopg.connect(databases.owner if database == "state" else databases.orders_owner) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unreachable, match=f"{database} database has schema version 9999"):
        async with running(settings, client, {role}, set(SERVICES)):
            pass


async def worker(settings: Settings, *arguments: str, **env: str) -> tuple[int | None, str]:
    """Exit code and last words of `worker.py`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "worker.py"),
        *arguments,
        env={**os.environ, **environment(settings), **env},
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(90):
            _, words = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, words.decode()


@pytest.mark.failure(95, 96)
async def test_exit_code_tells_a_wrong_setting_from_an_absent_server(settings: Settings, client: Client) -> None:
    found = await asyncio.gather(
        worker(settings, "--roles", "janitor"),
        worker(settings, "--roles", "callbacks", SAS_CALLBACK_SECRET=""),
        worker(settings, "--roles", "scheduler", SAS_ORDERS_URL=""),
        worker(settings, "--roles", "agents", TEMPORAL_ADDRESS="127.0.0.1:1"),
        worker(settings, "--roles", ""),
        worker(settings, "--roles", "callbacks", TEMPORAL_NAMESPACE="nowhere"),
        worker(settings, "--roles", "scheduler", SAS_ORDERS_URL=settings.database_url.get_secret_value()),
        worker(settings, "--roles", "callbacks", SAS_CALLBACK_PORT="70000"),
        worker(settings, SAS_HEALTH_FILE="/no/such/folder/alive", SAS_POLL_INTERVAL="0"),
        worker(settings, TEMPORAL_PROFILE="nowhere"),
        worker(settings, "--roles", "callbacks", SAS_CALLBACK_SECRET="x" * 31),
    )
    assert [code for code, _ in found] == [2, 2, 5, 5, 2, 5, 5, 2, 2, 2, 2]
    named = [
        "janitor",
        "SAS_CALLBACK_SECRET",
        "SAS_ORDERS_URL",
        "TEMPORAL_ADDRESS",
        "none is named",
        "TEMPORAL_NAMESPACE",
        "is not the orders database",
        "SAS_CALLBACK_PORT: ",
        "SAS_HEALTH_FILE: ",
        "'nowhere'",
        "SAS_CALLBACK_SECRET",
    ]
    assert [name for name, (_, words) in zip(named, found, strict=True) if name not in words] == []
    assert [words for _, words in found if not words.startswith("error: ") or "Traceback" in words] == []


# --- the port of the callbacks --------------------------------------------------------------------------------


@contextmanager
def stranger(settings: Settings) -> Iterator[None]:
    """Something else listens where the callbacks would."""
    with socket.create_server((settings.callback_host, settings.callback_port)):
        yield


@pytest.mark.failure(95)
async def test_worker_leaves_callbacks_to_one_that_serves_them_already(bench: Bench, settings: Settings) -> None:
    async with bench.worker(Role.CALLBACKS), bench.worker(Role.CALLBACKS), httpx.AsyncClient() as http:
        assert (await http.get(f"{settings.callback_url}/health")).json()["role"] == "callbacks"


@pytest.mark.failure(95)
async def test_worker_whose_callbacks_can_not_be_served_refuses_to_start(bench: Bench, settings: Settings) -> None:
    with stranger(settings), pytest.raises(UsageError, match=f"can't listen on .*:{settings.callback_port}"):
        async with bench.worker(Role.CALLBACKS):
            pass


@pytest.mark.failure(95)
async def test_worker_leaves_no_callbacks_to_those_of_another_deployment(bench: Bench, settings: Settings) -> None:
    """Those would refuse its answers as forged, or keep them in another store."""
    other = settings.model_copy(update={"callback_secret": SecretStr("the secret of somebody else's deployment")})
    assert deployment_of(settings.model_copy(update={"database_url": settings.orders_url})) != deployment_of(settings)
    async with bench.worker(Role.CALLBACKS, settings=other), httpx.AsyncClient() as http:
        with pytest.raises(UsageError, match=f"can't listen on .*:{settings.callback_port}"):
            async with bench.worker(Role.CALLBACKS):
                pass
        health = (await http.get(f"{settings.callback_url}/health")).text
    assert deployment_of(other) in health
    assert other.callback_secret.get_secret_value() not in health


# --- the health file ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("client")
async def test_health_file_exists_exactly_while_a_worker_is_ready(settings: Settings) -> None:
    assert settings.health_file is not None
    with WorkerProcess(settings, roles="agents") as process:
        await eventually(lambda: asyncio.to_thread(settings.health_file.exists))
        assert await process.stop() == 0
    assert not settings.health_file.exists()


@pytest.mark.failure(6)
async def test_health_file_goes_stale_while_the_event_loop_hangs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, stop = settings.health_file, asyncio.Event()
    assert file is not None
    monkeypatch.setattr(roles, "_HEALTH_S", 0.01)
    waiting = asyncio.create_task(roles._until(stop, file))

    async def touched_since(moment: int) -> bool:
        return file.exists() and file.stat().st_mtime_ns > moment

    await eventually(lambda: touched_since(0))
    first = file.stat().st_mtime_ns
    await eventually(lambda: touched_since(first))
    before = file.stat().st_mtime_ns
    time.sleep(0.2)  # noqa: ASYNC251 (the loop hangs: this is what the file is to show)
    assert file.stat().st_mtime_ns == before
    await eventually(lambda: touched_since(before))
    stop.set()
    await waiting
    assert not file.exists()
