"""A real PostgreSQL on this machine, for development, the demo and the tests.

It outlives a parent that is killed; the next `start()` finds it through PostgreSQL's own `postmaster.pid` and
adopts it. That file is the pid file: the server itself writes it, so there is no moment without it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import psycopg

from devstack.processes.log_files import log_size, open_log, tail
from devstack.processes.ports import ATTEMPTS, LOOPBACK, free_port, listens, was_taken
from devstack.processes.private_files import ONLY_OURS
from devstack.processes.records import EmbeddedServerError, command_line, exclusive, start_time, wait_until_gone
from devstack.servers.postgres_cluster import (
    SUPERUSER,
    Cluster,
    locate,
    prepare,
    read_password,
)
from runtime.shell import plain_environment

START_TIMEOUT = 60.0
"""Seconds until a server, which may have to recover first, must answer."""
STOP_TIMEOUT = 10.0
"""Seconds for each of the two ways to stop."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_checkpoints": "off",
}
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres:
    """One PostgreSQL server with its data below `state_dir/postgres`, on 127.0.0.1 only.

    As root, the server runs as `nobody`; see `postgres_cluster.locate` for where its data then goes.

    Args:
        state_dir: a folder of ours; created if missing.
        port: the port to prefer; any free one if None or taken.
        durable: False gives up safety against a power cut for speed; for tests only.
        extra_settings: PostgreSQL settings that are added to ours or replace them.
    """

    name = "postgres"

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        durable: bool = True,
        extra_settings: Mapping[str, str] | None = None,
    ) -> None:
        self._home = state_dir.resolve() / "postgres"
        self._log = self._home / "postgres.log"
        self._wanted_port = port
        self._port: int | None = None
        self._durable = durable
        self._settings = {**SETTINGS, **({} if durable else NOT_DURABLE), **(extra_settings or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server, or adopts the one that already serves this folder, and waits for a real answer.

        Once it has served, it keeps its port: clients know it.

        Raises:
            EmbeddedServerError: it did not come up; the message ends with the last lines of its log.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        with exclusive(self._home / "lock"):
            cluster = prepare(self._home, durable=self._durable)
            self._reap()
            if (running := _running(cluster.data)) is None:
                self._launch(cluster)
            else:
                pid, self._port = running
                if not self._answers(pid):
                    raise EmbeddedServerError(
                        f"PostgreSQL runs as process {pid} but does not answer{self._last_words()}"
                    )

    def stop(self) -> None:
        """Stops the server, whoever started it; does nothing if none runs.

        Open transactions are rolled back at once; if that does not end it in time, it is stopped as in a
        crash, and the next start recovers.
        """
        if not self._home.exists():
            return
        with exclusive(self._home / "lock"):
            if (pid := self.pid) is None:
                return
            for number in (signal.SIGINT, signal.SIGQUIT):
                os.kill(pid, number)
                if wait_until_gone(pid, STOP_TIMEOUT, self._process):
                    return
            raise EmbeddedServerError(f"PostgreSQL, process {pid}, does not stop{self._last_words()}")

    def delete_data(self) -> None:
        """Stops the server and deletes everything it kept, also a data folder outside `state_dir`."""
        self.stop()
        if self._data is not None:
            shutil.rmtree(self._data.parent)
        shutil.rmtree(self._home, ignore_errors=True)
        self._port = None

    def is_alive(self) -> bool:
        """Whether the server's main process runs."""
        return self.pid is not None

    @property
    def pid(self) -> int | None:
        """The process id of the server's main process, None if it does not run."""
        self._reap()
        running = _running(self._data) if self._data is not None else None
        return None if running is None else running[0]

    @property
    def port(self) -> int:
        """The port it listens on. Raises `EmbeddedServerError` if it was not started."""
        if self._port is None and self._data is not None and (running := _running(self._data)):
            self._port = running[1]
        if self._port is None:
            raise EmbeddedServerError(f"PostgreSQL in {self._home} was not started")
        return self._port

    def dsn(self, database: str = "postgres", user: str = SUPERUSER, password: str | None = None) -> str:
        """Returns a `postgresql://` URL over TCP.

        Args:
            database: name of the database.
            user: name of the role.
            password: its password; None means the superuser's own, and no password for any other role.
        """
        if password is None and user == SUPERUSER:
            password = read_password(self._home)
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{quote(user, safe='')}{secret}@{LOOPBACK}:{self.port}/{quote(database, safe='')}"

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of the server's log."""
        return tail(self._log, lines)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.poll()

    @property
    def _data(self) -> Path | None:
        return locate(self._home, durable=self._durable) / "data" if (self._home / "password").exists() else None

    def _launch(self, cluster: Cluster) -> None:
        served = self._port
        for attempt in range(1, ATTEMPTS + 1):
            self._port = served or free_port(self._wanted_port)
            written = log_size(self._log)
            self._process = self._spawn(cluster, self._port)
            if self._answers(self._process.pid):
                return
            self._abandon(self._process)
            words = tail(self._log, 20, since=written)
            if not was_taken(words, self._port) or attempt == ATTEMPTS:
                port, self._port = self._port, served
                raise EmbeddedServerError(f"PostgreSQL did not start on port {port}; its log ends:\n{words}")

    def _spawn(self, cluster: Cluster, port: int) -> subprocess.Popen[bytes]:
        settings = {**self._settings, "port": str(port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open_log(self._log) as log:
            return subprocess.Popen(
                [str(cluster.programs / "postgres"), "-D", str(cluster.data), *options],
                user=cluster.account.uid,
                group=cluster.account.gid,
                extra_groups=cluster.account.groups,
                cwd="/",
                env=plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                umask=ONLY_OURS,
                process_group=0,  # Ctrl-C reaches us only; we stop it in order
            )

    def _answers(self, pid: int) -> bool:
        """Waits until it listens and answers `SELECT 1`; False as soon as the process is gone, or at the time limit."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and not wait_until_gone(pid, 0, self._process):
            if listens(pid, self.port) and self._selects():
                return True
            time.sleep(0.02)
        return False

    def _selects(self) -> bool:
        try:
            with psycopg.connect(self.dsn(), connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            wait_until_gone(process.pid, STOP_TIMEOUT, self._process)

    def _last_words(self) -> str:
        return f"; its log ends:\n{self.log_tail()}"


def _running(data: Path) -> tuple[int, int] | None:
    """Returns process id and port of the server that serves `data`, from its `postmaster.pid`.

    A stale file is left to PostgreSQL, which also looks for surviving backends. Only when another program now
    has that process id would PostgreSQL refuse to start, so then the file is removed here.
    """
    pid_file = data / "postmaster.pid"
    try:
        lines = pid_file.read_text(encoding="utf-8").splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return None
    if str(data) in command_line(pid) and start_time(pid) is not None:
        return pid, port
    if start_time(pid) is not None:
        pid_file.unlink(missing_ok=True)
    return None
