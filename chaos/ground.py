"""What tests stand on: databases, the process of the simulators, and, for a world, settings that are quick."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
from pydantic import SecretStr

from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import LOOPBACK
from devstack.stack.environment import SERVICES
from runtime.settings import Settings
from store.migrate import migrate

ROOT = Path(__file__).parents[1]
MOST_SIGNALS, MOST_BUFFERED = 100, 20
LOWERED_LIMITS = {
    "limit.historyCount.error": "1000",  # of 51,200
    "limit.historySize.error": "1000000",  # of 50 MiB
    "limit.blobSize.error": "65536",  # of 2 MiB
    "limit.blobSize.warn": "65536",  # nothing smaller is refused
    "history.maximumSignalsPerExecution": str(MOST_SIGNALS),  # of 10,000
    "history.maximumBufferedEventsBatch": str(MOST_BUFFERED),  # of 100: a workflow task fails then
}
"""Of Temporal: runs with faults live with far less than there is."""


def make_databases(dsn: Callable[[str], str], *, state: str = "state", orders: str = "orders") -> str:
    """Both databases and their login roles, on a new server. `dsn`: its owner's address of a database.

    Returns:
        The owner's address of the state store.
    """
    with psycopg.connect(dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {state}")
        connection.execute(f"CREATE DATABASE {orders}")
        migrate(dsn(state), "state")
        migrate(dsn(orders), "orders")
        connection.execute("CREATE ROLE app LOGIN PASSWORD 'app' IN ROLE scheduler_app")
        connection.execute("CREATE ROLE sup LOGIN PASSWORD 'sup' IN ROLE scheduler_supervisor")
    return dsn(state)


def settings_at(ports: Mapping[str, int], given: Mapping[str, Any]) -> Settings:
    """Settings of a process that reaches everything at these ports; `given` are over ours."""

    def address(database: str, role: str) -> SecretStr:
        return SecretStr(f"postgresql://{role}:{role}@{LOOPBACK}:{ports['postgres']}/{database}")

    ours: dict[str, Any] = {
        "database_url": address("state", "app"),
        "orders_url": address("orders", "app"),
        "supervisor_database_url": address("state", "sup"),
        "services": {s: f"http://{LOOPBACK}:{ports['services']}/{s}" for s in SERVICES},
        "callback_url": f"http://{LOOPBACK}:{ports['callbacks']}",
        "callback_secret": SecretStr("test-secret" * 3),
        "claim_within": timedelta(seconds=2),
        "poll_interval": timedelta(milliseconds=250),
        "sweep_interval": timedelta(seconds=1),
        "orphan_grace": timedelta(seconds=2),
        "shutdown_grace": timedelta(seconds=2),
    }
    return Settings(**(ours | dict(given)))


def simulator_process(folder: Path, port: int) -> ManagedProcess:
    """The simulated services, in a process of their own."""
    options = ["--machine-delay-ms", "200", "--state-dir", str(folder / "simulators"), "--port", str(port)]
    return ManagedProcess(
        "simulators",
        [sys.executable, "-m", "devstack.simulators", *options],
        {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        folder / "simulators.log",
        folder / "simulators.pid",
        ready=lambda: _answers(port),
    )


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://{LOOPBACK}:{port}/health", timeout=1).is_success
    except httpx.HTTPError:
        return False
