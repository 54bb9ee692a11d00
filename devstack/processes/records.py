"""Which processes are ours: records on disk, checked against the operating system.

A process id alone proves nothing, because ids are used again. A record is believed only when the process's
start time and command line agree with it, so that nobody else's process is adopted or signalled.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

START_TIME_TOLERANCE = 2.0
"""Seconds. The boot time, from which start times are derived, moves a little when the clock is corrected."""


class EmbeddedServerError(RuntimeError):
    """A server of the embedded stack could not be started, reached or stopped; the message says why."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process as it was when we started it.

    Attributes:
        pid: its process id.
        started_at: seconds since 1970, as the operating system gives it.
        marker: an argument of its command line that no other program has, such as its data file.
        port: the main port it listens on, 0 for none.
        ui_port: the port of its user interface, 0 for none.
    """

    pid: int
    started_at: float
    marker: str
    port: int = 0
    ui_port: int = 0

    @classmethod
    def of(cls, pid: int, marker: str, port: int = 0, ui_port: int = 0) -> ProcessRecord:
        """Returns the record of a running process. Raises `EmbeddedServerError` if it is already gone."""
        started_at = start_time(pid)
        if started_at is None:
            raise EmbeddedServerError(f"process {pid} ({marker}) ended at once")
        return cls(pid, started_at, marker, port, ui_port)

    def is_running(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        started_at = start_time(self.pid)
        if started_at is None or abs(started_at - self.started_at) > START_TIME_TOLERANCE:
            return False
        return self.marker in command_line(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, if this very process still runs."""
        if self.is_running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def save(self, path: Path) -> None:
        """Writes the record so that a reader sees all of it or nothing."""
        write_atomically(path, json.dumps(asdict(self)))


def load_running(path: Path) -> ProcessRecord | None:
    """Returns the record in `path` if its process still runs; a stale or torn record is removed."""
    try:
        record = ProcessRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        record = None
    if record is None or not record.is_running():
        path.unlink(missing_ok=True)
        return None
    return record


def start_time(pid: int) -> float | None:
    """Returns when the process started, in seconds since 1970, or None if it is gone or a zombie."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def command_line(pid: int) -> list[str]:
    """Returns the process's arguments; empty if it is gone or hidden from us."""
    try:
        return [str(argument) for argument in psutil.Process(pid).cmdline()]
    except psutil.Error:
        return []


def wait_until_gone(pid: int, timeout: float, child: subprocess.Popen[bytes] | None = None) -> bool:
    """Waits up to `timeout` seconds, 0 for a look only, for a process to end; returns whether it did.

    Args:
        pid: the process, which need not be our child.
        timeout: in seconds.
        child: our handle, if it may be this process: then it is reaped through it.
    """
    try:
        if child is not None and child.pid == pid:
            child.wait(timeout)
        elif timeout > 0:
            psutil.Process(pid).wait(timeout)
    except psutil.NoSuchProcess:
        return True
    except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
        pass
    return start_time(pid) is None


def terminate(record: ProcessRecord, grace: float) -> None:
    """Ends a recorded process with SIGTERM, then SIGKILL after `grace` seconds."""
    record.send(signal.SIGTERM)
    if not wait_until_gone(record.pid, grace):
        record.send(signal.SIGKILL)
        wait_until_gone(record.pid, grace)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds an advisory lock between processes; it ends with the process, however that dies."""
    with path.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomically(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Writes `text` to `path` in one step, readable according to `mode` from the first moment on."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
