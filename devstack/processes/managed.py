"""Our own child processes: workers, simulators and the like. `keeper.py` starts dead ones again.

A child is in a process group of its own, so that Ctrl-C reaches only the parent, which then stops its
children in order. It gets `SAS_PARENT_PID` and calls `parent.die_with_recorded_parent`, so that it never
outlives us.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devstack.processes.log_files import open_log, tail
from devstack.processes.parent import PARENT_PID_VARIABLE
from devstack.processes.private_files import ONLY_OURS
from devstack.processes.records import (
    EmbeddedServerError,
    ProcessRecord,
    load_running,
    terminate,
    wait_until_gone,
)


class ManagedProcess:
    """One child process with a log file and a pid file.

    Start it from a thread that lives as long as the parent does (see `parent.die_with_parent`).

    Args:
        name: what it is called in messages.
        argv: the program and its arguments.
        env: its whole environment; `SAS_PARENT_PID` is added.
        log_file: takes its output and its errors.
        pid_file: records it, so that a process left over from a crash is found and ended first.
        ready: returns whether it can do its work; None means at once.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log_file: Path,
        pid_file: Path,
        *,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._log = log_file
        self._pid_file = pid_file
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_stop = False

    def start(self) -> None:
        """Starts the process and returns without waiting; does nothing if it runs already.

        A process that an earlier parent left behind is ended first.
        """
        if self._process is not None and self._process.poll() is None:
            return
        if (left_over := load_running(self._pid_file)) is not None:
            terminate(left_over, grace=5.0)
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        with open_log(self._log) as log:
            self._asked_to_stop = False
            self._process = subprocess.Popen(
                self._argv,
                env={**self._env, PARENT_PID_VARIABLE: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                umask=ONLY_OURS,
                process_group=0,
            )
        self._record(self._process.pid)

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Waits until the process can do its work.

        Raises:
            EmbeddedServerError: it ended or the time is over; the message ends with its log's last lines.
        """
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            code = self.poll()
            if code is not None or time.monotonic() > deadline:
                what = f"was not ready after {timeout:g} s" if code is None else f"ended with code {code}"
                raise EmbeddedServerError(f"{self.name} {what}; its log ends:\n{self.log_tail()}")
            time.sleep(0.02)

    def is_ready(self) -> bool:
        """Whether the process runs and its readiness check holds now."""
        return self.is_alive() and (self._ready is None or self._ready())

    def stop(self, grace: float = 20.0) -> None:
        """Ends the process with SIGTERM, then SIGKILL after `grace` seconds; does nothing if it is gone."""
        self.request_stop()
        if self._process is not None:
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        elif (record := load_running(self._pid_file)) is not None:
            terminate(record, grace)
        self._pid_file.unlink(missing_ok=True)

    def request_stop(self) -> None:
        """Sends SIGTERM, once, and does not wait, so that several can end side by side; a second would cut short."""
        if self._process is not None and self._process.poll() is None and not self._asked_to_stop:
            self._asked_to_stop = True
            self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL to the recorded process, as a crash would end it. The keeper then starts it again."""
        if (record := load_running(self._pid_file)) is not None:
            record.send(signal.SIGKILL)
            wait_until_gone(record.pid, 5.0, self._process)

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, or None while it runs or if it was never started."""
        return None if self._process is None else self._process.poll()

    def is_alive(self) -> bool:
        """Whether the process that we started runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id while it runs, otherwise None."""
        return self._process.pid if self._process is not None and self.is_alive() else None

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of its log."""
        return tail(self._log, lines)

    def _record(self, pid: int) -> None:
        try:
            ProcessRecord.of(pid, self._argv[-1]).save(self._pid_file)
        except EmbeddedServerError:  # it ended at once: `poll` tells why, and there is nothing to record
            self._pid_file.unlink(missing_ok=True)
