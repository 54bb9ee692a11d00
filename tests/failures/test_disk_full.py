"""The disk of the store is full: PostgreSQL ends, is started again once there is room, and has all it acknowledged."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest

from devstack.processes.keeper import Keeper, Restart
from devstack.servers.postgres import EmbeddedPostgres
from domain.faults import Unreachable
from store.submission import Accepted
from testing.databases import Databases
from tests.failures.servers import own_postgres
from tests.integration.store_bench import StoreBench, open_store_bench

SMALL = {"min_wal_size": "32MB", "max_wal_size": "32MB", "shared_buffers": "16MB"}


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 200 MB that PostgreSQL's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="sas-small-disk-", dir="/var/tmp"))
    try:
        mounted = os.geteuid() == 0 and _run("mount", "-t", "tmpfs", "-o", "size=200m,mode=0755", "tmpfs", str(folder))
        if not mounted:
            pytest.skip("a small disk can't be mounted here: that needs root and the right to mount")
        yield folder
        assert _run("umount", str(folder))
    finally:
        folder.rmdir()


@pytest.fixture
def server(small_disk: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL on it."""
    with own_postgres(small_disk, SMALL) as found:
        yield found


@asynccontextmanager
async def store_on(server: EmbeddedPostgres) -> AsyncIterator[tuple[StoreBench, Databases]]:
    """Both stores on that server."""
    databases = Databases(server)
    async with open_store_bench(databases, size=2) as bench:
        yield bench, databases


def leave_free(ballast: Path, size: int) -> None:
    """Fill the disk up to so many bytes, with this file."""
    room = shutil.disk_usage(ballast.parent).free - size
    with ballast.open("ab") as file:
        if room > 0:
            os.posix_fallocate(file.fileno(), file.tell(), room)


def write_ahead(server: EmbeddedPostgres, ballast: Path) -> None:
    """Let the write-ahead log grow until there is no room for it, nor for a recovery, and PostgreSQL ends."""
    while server.is_alive():
        with suppress(psycopg.OperationalError), psycopg.connect(server.dsn(), autocommit=True) as connection:
            while True:
                connection.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))")
        leave_free(ballast, 0)


async def submit_while_possible(bench: StoreBench, some: asyncio.Event) -> list[str]:
    """Submit one task after another until the store is away; those that were acknowledged. `some`: set by a few."""
    acknowledged: list[str] = []
    with suppress(Unreachable):
        for n in count():
            assert isinstance(await bench.submit(f"t-{n}"), Accepted)
            acknowledged.append(f"t-{n}")
            if len(acknowledged) > 10:
                some.set()
    return acknowledged


@pytest.mark.failure(55)
@pytest.mark.demand("A2")
async def test_postgres_returns_from_a_full_disk_and_has_lost_nothing(
    small_disk: Path, server: EmbeddedPostgres
) -> None:
    now, restarts, ballast = [0.0], list[Restart](), small_disk / "ballast"
    keeper = Keeper([server], restarts.append, clock=lambda: now[0])
    keeper.start()
    async with store_on(server) as (bench, databases):
        leave_free(ballast, 24_000_000)
        some = asyncio.Event()
        submitting = asyncio.create_task(submit_while_possible(bench, some))
        await some.wait()
        await asyncio.to_thread(write_ahead, server, ballast)
        acknowledged = await submitting
        assert len(acknowledged) > 10
        for _ in range(3):  # dead; a start that fails; dead
            await asyncio.to_thread(keeper.tick)
            now[0] += 1.0
        ballast.unlink()
        now[0] += 1.0
        await asyncio.to_thread(keeper.tick)
    assert "No space left on device" in f"{restarts[0].error}{restarts[0].last_words}"
    assert (restarts[-1].error, server.is_alive()) == (None, True)
    for address, table in ((databases.owner, "task"), (databases.orders_owner, "business_record")):
        with psycopg.connect(address) as connection:
            rows = connection.execute(f"SELECT task_id FROM {table}").fetchall()  # noqa: S608 (fixed names)
        assert set(acknowledged) <= {task_id for (task_id,) in rows}


def _run(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
