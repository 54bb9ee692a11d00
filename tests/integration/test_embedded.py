"""The embedded stack: servers that start, are adopted, recover from `kill -9` and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from temporalio.client import Client

from devstack.processes.keeper import Keeper, Restart, pause_after
from devstack.processes.log_files import tail
from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import free_port, was_taken
from devstack.processes.records import EmbeddedServerError, ProcessRecord, load_running, wait_until_gone
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from devstack.servers.temporal_health import missing_search_attributes
from domain.search_attributes import SEARCH_ATTRIBUTES
from store import migrate
from tests.embedded_fixtures import listening

ROOT = Path(__file__).resolve().parents[2]
WAIT_FOR_EVER = "import threading; print('up', flush=True); threading.Event().wait()"


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


@pytest.fixture
def temporal(tmp_path: Path) -> Iterator[EmbeddedTemporal]:
    server = EmbeddedTemporal(tmp_path, ui_port=0, search_attributes=SEARCH_ATTRIBUTES)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


def test_preferred_port_is_taken_only_when_it_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        assert free_port(taken) != taken
    assert free_port(taken) == taken


@pytest.mark.failure(119)
def test_postgres_answers_and_keeps_its_safety_settings(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        shown = {
            name: connection.execute(f"SELECT current_setting('{name}')").fetchone()
            for name in ("fsync", "TimeZone", "listen_addresses", "server_encoding", "max_connections")
        }
    assert shown == {
        "fsync": ("on",),
        "TimeZone": ("UTC",),
        "listen_addresses": ("127.0.0.1",),
        "server_encoding": ("UTF8",),
        "max_connections": ("200",),
    }


@pytest.mark.failure(119)
def test_postgres_refuses_a_wrong_password(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn(password="p@ss/word?"))


def test_second_postgres_on_the_same_folder_adopts_the_first(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    second = EmbeddedPostgres(tmp_path)
    second.start()
    assert (second.pid, second.port, second.dsn()) == (postgres.pid, postgres.port, postgres.dsn())


@pytest.mark.failure(46)
def test_committed_row_survives_a_killed_postgres(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        connection.execute("CREATE TABLE kept (id integer)")
        connection.execute("INSERT INTO kept VALUES (7)")
    _kill(postgres.pid)
    assert not postgres.is_alive()

    postgres.start()

    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(7,)]


def test_stopped_postgres_leaves_no_process(postgres: EmbeddedPostgres) -> None:
    pid = postgres.pid
    assert pid is not None
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    postgres.stop()
    assert not postgres.is_alive()
    assert [pid for pid in family if psutil.pid_exists(pid)] == []
    postgres.stop()  # again: nothing to do


def test_postgres_starts_although_its_old_process_id_is_now_anothers(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    pid_file = Path(row[0]) / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    _kill(postgres.pid)
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")

    postgres.start()

    assert postgres.pid != os.getpid()


def test_postgres_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, durable=False, extra_settings={"max_connections": "many"})
    try:
        with pytest.raises(EmbeddedServerError, match="max_connections"):
            server.start()
        assert not server.is_alive()
    finally:
        server.delete_data()


def test_deleted_postgres_leaves_no_folder(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path, durable=False)
    server.start()
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    server.delete_data()
    assert not Path(row[0]).parent.exists()
    assert not (tmp_path / "postgres").exists()


async def test_temporal_is_healthy_and_has_the_search_attributes(temporal: EmbeddedTemporal) -> None:
    client = await Client.connect(temporal.address)
    assert await client.service_client.check_health()
    assert await missing_search_attributes(client, SEARCH_ATTRIBUTES) == {}


def test_temporal_listens_on_the_loopback_interface_only(temporal: EmbeddedTemporal) -> None:
    assert {ip for ip, _ in listening(psutil.Process(temporal.pid))} == {"127.0.0.1"}


async def test_second_temporal_adopts_the_first_and_adds_search_attributes(
    temporal: EmbeddedTemporal, tmp_path: Path
) -> None:
    second = EmbeddedTemporal(tmp_path, ui_port=0, search_attributes={"AddedLater": "Keyword"})
    second.start()
    assert (second.pid, second.address) == (temporal.pid, temporal.address)
    assert second.ui_url is None
    client = await Client.connect(second.address)
    assert await missing_search_attributes(client, {"AddedLater": "Keyword"}) == {}


@pytest.mark.failure(40)
async def test_started_workflow_survives_a_killed_temporal(temporal: EmbeddedTemporal) -> None:
    client = await Client.connect(temporal.address)
    handle = await client.start_workflow("Nothing", id="kept", task_queue="nobody-polls")
    _kill(temporal.pid)
    assert not temporal.is_alive()

    temporal.start()

    client = await Client.connect(temporal.address)
    described = await client.get_workflow_handle("kept").describe()
    assert described.run_id == handle.result_run_id


@pytest.mark.failure(120)
@pytest.mark.demand("H5")
def test_nobody_else_can_read_what_temporal_keeps(temporal: EmbeddedTemporal, tmp_path: Path) -> None:
    """Histories hold the tasks' records. What an earlier version left open is closed at the next start."""
    home = tmp_path / "temporal"
    assert readable_by_others(home) == []
    home.chmod(0o755)
    for file in home.iterdir():
        file.chmod(0o644)
    EmbeddedTemporal(tmp_path, ui_port=0).start()
    assert readable_by_others(home) == []


@pytest.mark.failure(101)
@pytest.mark.parametrize(
    "folder", ["a b", "c#1", "d?mode=memory", "e%20%23", "f'g\"h", "i,j;$k`l", "Zürich 東京", "file:x"]
)
def test_folder_of_any_name_holds_all_that_the_servers_keep(folder: str, tmp_path: Path) -> None:
    """A path is not a URI, nor a list, nor a line of shell."""
    home = tmp_path / folder
    temporal, postgres = EmbeddedTemporal(home, ui_port=0), EmbeddedPostgres(home, durable=False)
    try:
        for _ in range(2):
            temporal.start()
            postgres.start()
            with psycopg.connect(postgres.dsn()) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
            temporal.stop()
            postgres.stop()
        assert [p.name for p in tmp_path.iterdir()] == [folder]
        assert (home / "temporal" / "temporal.db").stat().st_size > 0
    finally:
        temporal.delete_data()
        postgres.delete_data()


@pytest.mark.failure(101)
def test_migrations_are_found_in_a_clone_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "50%20 #1"
    monkeypatch.setattr(migrate, "__file__", str(clone / "store" / "migrate.py"))
    found = migrate._config("postgresql://", "state").get_main_option("script_location")
    assert found == str(clone / "store" / "migrations" / "state")


@pytest.mark.failure(99)
async def test_server_whose_port_was_taken_meanwhile_takes_another(
    temporal_server: EmbeddedTemporal,
    postgres_server: EmbeddedPostgres,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both answer as healthy: what answers counts only if it is the server that was started."""
    temporal, postgres = EmbeddedTemporal(tmp_path, ui_port=0), EmbeddedPostgres(tmp_path, durable=False)
    offered = {temporal: [temporal_server.port], postgres: [postgres_server.port]}
    try:
        for server, taken in offered.items():
            module = sys.modules[type(server).__module__]
            monkeypatch.setattr(module, "free_port", lambda _, taken=taken: taken.pop() if taken else free_port())
            server.start()
            assert taken == []
        assert temporal.port != temporal_server.port
        assert postgres.port != postgres_server.port
        assert {("127.0.0.1", temporal.port)} <= listening(psutil.Process(temporal.pid))
        with psycopg.connect(postgres.dsn()) as connection:
            assert connection.execute("SHOW port").fetchone() == (str(postgres.port),)
    finally:
        temporal.delete_data()
        postgres.delete_data()


def test_port_that_was_taken_is_seen_before_a_long_stack(tmp_path: Path) -> None:
    log = tmp_path / "temporal.log"
    stack = [f"goroutine {n} [running]:" for n in range(100)]
    log.write_text("\n".join(["starting", "panic: listen tcp 127.0.0.1:7233: bind: address already in use", *stack]))
    assert was_taken(tail(log, 20))
    assert tail(log, 2).splitlines()[1] == stack[0]


def test_taken_port_is_noticed_whatever_the_server_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert was_taken("panic: invalid memory address", listener.getsockname()[1], 0)
    assert not was_taken("panic: invalid memory address", free_port(), 0)


@pytest.mark.failure(100)
def test_server_returns_on_its_ports_or_not_at_all(temporal: EmbeddedTemporal) -> None:
    """Its clients know no other."""
    port = temporal.port
    temporal.stop()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(EmbeddedServerError, match="already in use"):
        temporal.start()
    temporal.start()
    assert temporal.port == port


def test_stopped_temporal_leaves_no_process(temporal: EmbeddedTemporal) -> None:
    pid = temporal.pid
    temporal.stop()
    assert not temporal.is_alive()
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_record_of_another_process_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    ours = ProcessRecord.of(os.getpid(), psutil.Process().cmdline()[-1])
    ours.save(path)
    assert load_running(path) == ours
    ProcessRecord(ours.pid, ours.started_at - 60, ours.marker).save(path)
    assert load_running(path) is None
    assert not path.exists()


def test_managed_process_stops_and_leaves_nothing(tmp_path: Path) -> None:
    child = _child(tmp_path)
    child.start()
    child.wait_ready()
    pid = child.pid
    assert pid is not None
    assert os.getpgid(pid) == pid  # Ctrl-C in our terminal does not reach it
    child.stop()
    assert child.poll() == -signal.SIGTERM
    assert not psutil.pid_exists(pid)
    assert not (tmp_path / "child.pid").exists()


def test_managed_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    child = _child(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT_FOR_EVER)
    child.start()
    child.wait_ready()
    child.stop(grace=0.1)
    assert child.poll() == -signal.SIGKILL


def test_process_that_never_becomes_ready_says_why(tmp_path: Path) -> None:
    child = _child(tmp_path, "raise SystemExit('no settings')")
    child.start()
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended with code 1.*no settings"):
        child.wait_ready()


def test_orphan_of_an_earlier_parent_ends_before_the_next_start(tmp_path: Path) -> None:
    earlier, later = _child(tmp_path), _child(tmp_path)
    earlier.start()
    earlier.wait_ready()
    later.start()
    try:
        assert not earlier.is_alive()
        assert later.is_alive()
    finally:
        later.stop()


def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    child = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from devstack.processes.parent import die_with_recorded_parent\n"
        "die_with_recorded_parent()\n" + WAIT_FOR_EVER
    )
    parent = (
        f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from devstack.processes.managed import ManagedProcess\n"
        f"log = Path({str(tmp_path)!r}, 'log')\n"
        f"child = ManagedProcess('child', [sys.executable, '-c', {child!r}], dict(os.environ), log,\n"
        f"    log.with_name('pid'), ready=lambda: 'up' in log.read_text())\n"
        "child.start(); child.wait_ready(); print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert wait_until_gone(int(done.stdout), 10.0)


def test_pause_between_restarts_doubles_up_to_half_a_minute() -> None:
    assert [pause_after(deaths) for deaths in (1, 2, 3, 6, 7, 8, 1000)] == [0.5, 1, 2, 16, 30, 30, 30]


def test_keeper_restarts_a_dead_process_after_its_pause(tmp_path: Path) -> None:
    now, restarts = [0.0], list[Restart]()
    child = _child(tmp_path)
    keeper = Keeper([child], restarts.append, clock=lambda: now[0])
    keeper.start()
    try:
        child.wait_ready()
        for pause in (0.5, 1.0):
            child.kill()
            keeper.tick()  # notes the death
            now[0] += pause - 0.01
            keeper.tick()
            assert not child.is_alive()
            now[0] += 0.02
            keeper.tick()
            assert child.is_alive()
        now[0] += 60.0
        child.kill()
        keeper.tick()
        now[0] += 0.5
        keeper.tick()
        assert child.is_alive()
    finally:
        keeper.stop()
    assert [(restart.deaths, restart.pause) for restart in restarts] == [(1, 0.5), (2, 1.0), (1, 0.5)]
    assert not child.is_alive()


@pytest.mark.failure(55)
def test_keeper_restarts_a_killed_postgres_on_its_old_port(postgres: EmbeddedPostgres) -> None:
    now, port = [0.0], postgres.port
    keeper = Keeper([postgres], clock=lambda: now[0])
    keeper.start()
    _kill(postgres.pid)
    keeper.tick()
    now[0] += 0.5
    keeper.tick()
    assert postgres.is_alive()
    assert postgres.port == port


def readable_by_others(folder: Path) -> list[Path]:
    """What others may read: the folder, and what is in it."""
    return [path for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o077 and path.name != "lock"]


def _child(folder: Path, code: str = WAIT_FOR_EVER) -> ManagedProcess:
    log = folder / "child.log"
    return ManagedProcess(
        "child",
        [sys.executable, "-c", code],
        dict(os.environ),
        log,
        folder / "child.pid",
        ready=lambda: "up" in log.read_text(),
    )


def _kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid, 5.0)
