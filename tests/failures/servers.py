"""Servers of a file's own, which its tests may kill: those of the session serve everybody else.

A file that wants them overrides the fixture `temporal_server` or `templates` for itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict

from devstack.processes.accounts import server_account
from devstack.processes.records import wait_until_gone
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.postgres_binaries import programs_for
from devstack.servers.temporal import EmbeddedTemporal
from domain.search_attributes import SEARCH_ATTRIBUTES
from domain.states import TaskState
from store.submission import Accepted
from testing.bench import Bench
from testing.databases import make_templates
from testing.waiting import PATIENCE_S


class Killable(Protocol):
    """An embedded server."""

    @property
    def pid(self) -> int | None: ...


@contextmanager
def own_temporal(folder: Path) -> Iterator[EmbeddedTemporal]:
    """A Temporal server that nobody else uses."""
    server = EmbeddedTemporal(folder, ui_port=0, search_attributes=SEARCH_ATTRIBUTES)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


@contextmanager
def own_postgres(folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that nobody else uses, as safe as in production, with a template of each database."""
    server = EmbeddedPostgres(folder, extra_settings=settings)
    try:
        server.start()
        make_templates(server)
        yield server
    finally:
        server.delete_data()


def copied(server: EmbeddedPostgres, folder: Path, *, follows: bool = False) -> EmbeddedPostgres:
    """A second server on a base backup of `server` as it is now, not started; with `follows`, its standby."""
    with psycopg.connect(server.dsn()) as connection:
        (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
    account = server_account(Path(data).parent)
    target = Path(tempfile.mkdtemp(prefix="sas-copy-", dir="/var/tmp"))
    account.own(target)
    subprocess.run(
        [programs_for(account) / "pg_basebackup", "-D", target / "data", "-d", server.dsn(), "--checkpoint=fast"]
        + (["--write-recovery-conf"] if follows else []),
        user=account.uid,
        group=account.gid,
        extra_groups=account.groups,
        cwd="/",
        check=True,
    )
    home = folder / "postgres"
    home.mkdir(parents=True)
    (home / "location").write_text(f"{target}\n")
    (home / "password").write_text(str(conninfo_to_dict(server.dsn())["password"]))
    return EmbeddedPostgres(folder, port=None if follows else server.port)


def kill(server: Killable) -> None:
    """End a server as a crash does."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid, 10.0)


async def submitted(bench: Bench, record: dict[str, Any], prefix: str, count: int) -> list[str]:
    """So many new tasks, each acknowledged."""
    ids = [f"{prefix}-{n}" for n in range(count)]
    verdicts = await asyncio.gather(*(bench.submit(record, i) for i in ids))
    assert all(isinstance(v, Accepted) for v in verdicts)
    return ids


async def ended(bench: Bench, ids: list[str], *, within_s: float = PATIENCE_S) -> set[TaskState]:
    """Wait until all of these are settled, sweeping meanwhile as the Schedule would; the states they ended in."""
    return {await bench.settled_with_sweeps(i, within_s=within_s) for i in ids}
