"""A process of simulators, and what is sent to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[3]
RESERVATION = {"sku_lines": [{"sku": "BOOK", "quantity": 2}]}
CHARGE = {"amount_minor": 1999, "currency": "EUR", "card_token": "tok_visa"}
SHIPMENT = {
    "address": {"name": "Ada", "line1": "1 Main St", "city": "Bern", "postcode": "3000", "country": "CH"},
    "parcels": 1,
}


class Simulators:
    """A running `python -m devstack.simulators` and a client for it."""

    def __init__(self, state_dir: Path, *options: str) -> None:
        command = [sys.executable, "-m", "devstack.simulators", "--port", "0", "--state-dir", str(state_dir), *options]
        environment = {name: value for name, value in os.environ.items() if name != "SAS_PARENT_PID"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("simulators ready on http://127.0.0.1:"), ready
        self.client = httpx.Client(base_url=ready.split()[-1], timeout=10, trust_env=False)
        assert self.client.get("/health").status_code == 200

    def close(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends the process and returns its exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def post(
        self,
        path: str,
        key: str,
        body: object,
        token: int = 1,
        *,
        timeout_s: float = 10,
        time_left_ms: int = 5000,
    ) -> httpx.Response:
        """Posts with the protocol's headers."""
        sent = {"Idempotency-Key": key, "X-Fencing-Token": str(token), "X-Time-Left-Ms": str(time_left_ms)}
        return self.client.post(path, json=body, headers=sent, timeout=timeout_s)

    def undo(self, path: str, keys: list[str], token: int = 1, generation: int = 0) -> httpx.Response:
        """Undoes the keys of one step."""
        task_id, step, _ = keys[0].split(":")
        return self.post(path, f"{task_id}:{step}:undo-{generation}", {"keys": keys}, token)

    def fault(self, service: str, kind: str, **rule: object) -> None:
        """Puts a fault rule in force."""
        answer = self.client.post(f"/control/{service}/faults", json={"kind": kind, **rule})
        assert answer.status_code == 201, answer.text

    def ledger(self, service: str, task_id: str | None = None) -> Any:
        """Returns a service's ledger."""
        parameters = {} if task_id is None else {"task_id": task_id}
        return self.client.get(f"/control/{service}/ledger", params=parameters).json()

    def summary(self, service: str) -> Any:
        """Returns a service's counts."""
        return self.client.get("/control/summary").json()[service]


def machine(url: str | None) -> dict[str, object]:
    """A machine to be made, and who is told."""
    ids = {"address_id": "address_1", "disk_id": "disk_1"}
    return {"region": "eu", "machine_type": "small", "callback_url": url, **ids}


def code(response: httpx.Response) -> str:
    """The code of a refusal."""
    return str(response.json()["error"]["code"])
