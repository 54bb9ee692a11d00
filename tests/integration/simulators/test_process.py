"""What goes on without a caller: machines are finished later, and a process that dies has lost nothing."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.simulators.process import CHARGE, ROOT, Simulators, machine


@pytest.fixture
def callbacks() -> Iterator[tuple[str, queue.Queue[Any]]]:
    """A URL that answers 503 once and 200 from then on, and the bodies it took with 200."""
    received: queue.Queue[Any] = queue.Queue()
    refusals = iter([503])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = next(refusals, 200)
            if status == 200:
                received.put(body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/answers", received
    server.shutdown()
    thread.join()
    server.server_close()


# --- machines -------------------------------------------------------------------------------------------------


def test_machine_is_finished_later_and_told_by_callback(
    sim: Simulators, callbacks: tuple[str, queue.Queue[Any]]
) -> None:
    url, received = callbacks
    first, again = (sim.post("/cloud/machines", "t1:machine:0", machine(url)) for _ in range(2))
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    told = received.get(timeout=10)
    result = told["result"]
    assert (told["key"], told["status"]) == ("t1:machine:0", "done")
    assert result["machine_id"] == first.json()["machine_id"]
    done = sim.post("/cloud/machines", "t1:machine:0", machine(url))
    assert (done.status_code, done.json()) == (200, {"state": "done", **result})
    assert sim.client.get("/cloud/operations/t1:machine:0").json()["status"] == 200


def test_undone_machine_sends_no_callback(sim: Simulators, callbacks: tuple[str, queue.Queue[Any]]) -> None:
    url, received = callbacks
    sim.post("/cloud/machines", "t1:machine:0", machine(url))
    assert sim.undo("/cloud/machines/undo", ["t1:machine:0"]).json()["undone"] == 1
    sim.post("/cloud/machines", "t2:machine:0", machine(url))
    assert received.get(timeout=10)["key"] == "t2:machine:0"
    assert received.empty()


# --- the process ----------------------------------------------------------------------------------------------


def test_kill_and_restart_keep_ledger_and_machines(tmp_path: Path, callbacks: tuple[str, queue.Queue[Any]]) -> None:
    url, received = callbacks
    before = Simulators(tmp_path, "--machine-delay-ms", "60000")
    charged = before.post("/payments/charges", "t1:pay:0", CHARGE, token=3).json()
    before.post("/cloud/machines", "t1:machine:0", machine(url))
    assert before.close(signal.SIGKILL) == -signal.SIGKILL
    after = Simulators(tmp_path, "--machine-delay-ms", "0")
    try:
        assert received.get(timeout=10)["key"] == "t1:machine:0"
        replayed = after.post("/payments/charges", "t1:pay:0", CHARGE, token=3)
        assert (replayed.json(), replayed.headers["Idempotent-Replayed"]) == (charged, "true")
        assert after.post("/payments/charges", "t1:pay:0", CHARGE, token=2).status_code == 412
    finally:
        assert after.close() == 0


@pytest.mark.demand("H11")
def test_crash_fault_kills_after_the_commit(tmp_path: Path) -> None:
    before = Simulators(tmp_path)
    before.fault("payments", "crash")
    with pytest.raises(httpx.TransportError):
        before.post("/payments/charges", "t1:pay:0", CHARGE)
    assert before.close() == 137
    after = Simulators(tmp_path)
    try:
        assert len(after.ledger("payments", "t1")["effects"]) == 1
    finally:
        assert after.close() == 0


def test_simulators_end_with_the_parent_they_were_given(tmp_path: Path) -> None:
    gone = {**os.environ, "SAS_PARENT_PID": "1" if os.getpid() != 1 else "2"}
    command = [sys.executable, "-m", "devstack.simulators", "--port", "0", "--state-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=gone, capture_output=True, timeout=10, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")
