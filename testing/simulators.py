"""The simulated services: their process, and a client of their faults and ledgers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import LOOPBACK
from devstack.stack.environment import SERVICES
from domain.namespace import NAMESPACE
from testing import ROOT
from testing.waiting import eventually


def simulator_process(folder: Path, port: int, stand_ins: Iterable[str] = ()) -> ManagedProcess:
    """The simulated services, in a process of their own. `stand_ins`: actions of further services."""
    options = ["--machine-delay-ms", "200", "--state-dir", str(folder / "simulators"), "--port", str(port)]
    options += [word for action in stand_ins for word in ("--stand-in", action)]
    return ManagedProcess(
        "simulators",
        [sys.executable, "-m", f"{NAMESPACE}devstack.simulators", *options],
        {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        folder / "simulators.log",
        folder / "simulators.pid",
        ready=lambda: _answers(port),
    )


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://{LOOPBACK}:{port}/health", timeout=1).is_success
    except httpx.HTTPError:
        return False


class Simulators:
    """The remote services, their faults and their ledgers."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.services = {s: f"{url}/{s}" for s in SERVICES}
        self._http = httpx.Client(base_url=url, timeout=10)

    def fault(self, service: str, kind: str, **rule: Any) -> None:
        """Make a service fail on purpose."""
        self._http.post(f"/control/{service}/faults", json={"kind": kind, **rule}).raise_for_status()

    def heal(self) -> None:
        """No service fails on purpose any more."""
        self._http.delete("/control/faults").raise_for_status()

    def reset(self) -> None:
        """Empty ledgers, no faults."""
        self._http.post("/control/reset").raise_for_status()

    def ledger(self, service: str, task_id: str) -> dict[str, Any]:
        """What a service has on record of a task: effects, tombstones, calls, refusals."""
        answer = self._http.get(f"/control/{service}/ledger", params={"task_id": task_id}).raise_for_status()
        return dict(answer.json())

    def whole_ledger(self, service: str) -> dict[str, Any]:
        """What a service has on record of all tasks."""
        return dict(self._http.get(f"/control/{service}/ledger").raise_for_status().json())

    def live(self, task_id: str) -> dict[str, int]:
        """Effects that stand, by service; services without any are left out."""
        counts = {s: sum(e["undone_at"] is None for e in self.ledger(s, task_id)["effects"]) for s in SERVICES}
        return {s: n for s, n in counts.items() if n}

    def calls(self, service: str, task_id: str, *, undo: bool = False) -> int:
        """Calls that a service has received for a task."""
        return sum(c["undo"] is undo for c in self.ledger(service, task_id)["calls"])

    async def called(self, service: str, task_id: str, *, undo: bool = False) -> None:
        """Wait until a service has received a call for a task."""

        async def there() -> bool:
            return self.calls(service, task_id, undo=undo) > 0

        await eventually(there)

    def close(self) -> None:
        self._http.close()
