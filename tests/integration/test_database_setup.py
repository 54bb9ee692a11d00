"""The set-up of the databases in containers, run by its own script against a real server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from devstack.processes.accounts import server_account
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.postgres_binaries import programs_for
from testing import ROOT

SCRIPT = ROOT / "deploy" / "postgres" / "setup.sh"
LOGINS = {"OWNER": "sas_owner", "APP": "sas_app", "SUPERVISOR": "sas_supervisor", "TEMPORAL": "temporal"}
PASSWORDS = {f"POSTGRES_{who}_PASSWORD": f"0123456789abcdef{who}" for who in LOGINS}
Connect = Callable[[str, str], psycopg.Connection]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server of its own, as the roles are of the whole server."""
    server = EmbeddedPostgres(tmp_path, durable=False)
    server.start()
    yield server
    server.delete_data()


def set_up(server: EmbeddedPostgres, **changed: str) -> None:
    """Run the script."""
    place = urlsplit(server.dsn("postgres"))
    variables = {"PGHOST": "127.0.0.1", "PGPORT": str(place.port), "PGPASSWORD": str(place.password)}
    path = f"{programs_for(server_account(SCRIPT))}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **PASSWORDS, **variables, **changed, "PATH": path}
    subprocess.run(["/bin/bash", str(SCRIPT)], env=environment, check=True)


def may_enter(server: EmbeddedPostgres, who: str, database: str, password: str = "") -> bool:
    """Whether a login gets into a database."""
    dsn = server.dsn(database, user=LOGINS[who], password=password or PASSWORDS[f"POSTGRES_{who}_PASSWORD"])
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.demand("H7")
def test_set_up_heals_what_is_missing_and_takes_a_changed_password(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as half_made:
        half_made.execute("CREATE ROLE scheduler_app")
        half_made.execute("CREATE ROLE temporal")
    set_up(server)
    changed = "fedcba9876543210"
    set_up(server, POSTGRES_APP_PASSWORD=changed)
    assert not may_enter(server, "APP", "scheduler")
    assert may_enter(server, "APP", "scheduler", changed)


def test_each_login_enters_its_own_databases_only(server: EmbeddedPostgres) -> None:
    set_up(server)
    databases = ("scheduler", "orders", "temporal", "temporal_visibility", "postgres", "template1")
    entered = {who: {d for d in databases if may_enter(server, who, d)} for who in LOGINS}
    assert entered == {
        "OWNER": {"scheduler", "orders"},
        "APP": {"scheduler", "orders"},
        "SUPERVISOR": {"scheduler"},
        "TEMPORAL": {"temporal", "temporal_visibility"},
    }
    with psycopg.connect(server.dsn("scheduler")) as connection:
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
