"""The whole system on this machine: servers, simulated services and workers, started in order and kept running.

The state folder holds all of it: data, logs, pid files, secrets, the lock, and, while the stack is up, `env.json`
with the variables that lead other commands here. What a stack that was killed left behind is ended, or adopted, by
the next one on the same folder.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from temporalio.client import Client

from domain.faults import Conflict
from domain.search_attributes import SEARCH_ATTRIBUTES
from runtime.embedded.keeper import Keepable, Keeper, Restart
from runtime.embedded.ports import LOOPBACK, free_port
from runtime.embedded.postgres import EmbeddedPostgres
from runtime.embedded.processes import ManagedProcess
from runtime.embedded.records import EmbeddedServerError, load_running, terminate, write_atomically
from runtime.embedded.stack_databases import APP, ORDERS, STATE, SUPERVISOR, Credentials, prepare_databases
from runtime.embedded.stack_environment import Addresses, worker_environment
from runtime.embedded.stack_events import Died, Ready, Restarted, StackEvent, Starting, Stopped, Stopping
from runtime.embedded.stack_lock import StackLock
from runtime.embedded.stack_readiness import answers, polls, server_version
from runtime.embedded.temporal import EmbeddedTemporal

ROOT = Path(__file__).resolve().parents[2]
POSTGRES_PORT, TEMPORAL_PORT, UI_PORT, SIMULATORS_PORT, CALLBACK_PORT = 54329, 7233, 8233, 8790, 8787
"""Ports to prefer; any free ones where these are taken."""

READY_TIMEOUT, STOP_GRACE = 60.0, 10.0
_LOOK_EVERY = 0.1
_ROLES = ("scheduler,agents,supervisor,callbacks", "scheduler,agents")
_LABELS = {"postgres": "PostgreSQL", "temporal": "Temporal", "simulators": "Simulators"}
_DATA = ("postgres", "temporal", "simulators")
_DISPOSABLE = "disposable"


class EmbeddedStack:
    """PostgreSQL, Temporal, the simulated services and some workers, on one state folder.

    Call everything from the main thread, and `start` and `stop` once each; `stop` also after a failed `start`.

    Args:
        state_dir: Where everything is kept. Made if missing.
        workers: How many worker processes; the first also supervises and takes callbacks.
        worker_env: Variables for the workers, beside our own and the stack's.
        disposable: Begin with empty data. Refused for a folder with data that no disposable stack made.
        on_event: Is told what happens.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        workers: int = 2,
        worker_env: Mapping[str, str] | None = None,
        disposable: bool = False,
        on_event: Callable[[StackEvent], None] | None = None,
    ) -> None:
        self.state_dir = state_dir.resolve()
        self._count, self._worker_env, self._disposable = workers, dict(worker_env or {}), disposable
        self._emit = on_event or (lambda _: None)
        self._lock = StackLock(self.state_dir)
        self._postgres = EmbeddedPostgres(self.state_dir, port=POSTGRES_PORT)
        self._temporal = EmbeddedTemporal(
            self.state_dir, port=TEMPORAL_PORT, ui_port=UI_PORT, search_attributes=SEARCH_ATTRIBUTES
        )
        self._simulators: list[ManagedProcess] = []
        self._workers: list[ManagedProcess] = []
        self._keeper = Keeper([])
        self._addresses: Addresses | None = None
        self._client: Client | None = None
        self._down: set[str] = set()
        self._returning: dict[str, float] = {}

    @property
    def addresses(self) -> Addresses:
        """Where everything is. Raises `EmbeddedServerError` before `start` has come that far."""
        if self._addresses is None:
            raise EmbeddedServerError(f"the stack in {self.state_dir} was not started")
        return self._addresses

    @property
    def environment_file(self) -> Path:
        """The file with the variables that lead commands here; there while the stack is up."""
        return self.state_dir / "env.json"

    @property
    def logs(self) -> Path:
        """Folder of the logs of workers and simulators."""
        return self.state_dir / "logs"

    def worker(self, number: int) -> ManagedProcess:
        """The process of `worker-<number>`, counted from 1."""
        return self._workers[number - 1]

    def pids(self) -> dict[str, int | None]:
        """Process ids by name, None for what does not run just now."""
        return {part.name: part.pid for part in (self._postgres, self._temporal, *self._simulators, *self._workers)}

    async def start(self) -> None:
        """Start everything in order, and return once all of it can do its work.

        Raises:
            Conflict: The folder's stack is up already, or its data must not be thrown away.
            EmbeddedServerError: A part did not come up; the message ends with the last lines of its log.
        """
        self.state_dir.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        await asyncio.to_thread(self._clear_up)
        credentials = Credentials.of(self.state_dir)
        await self._start_postgres(credentials)
        await self._start_temporal()
        self._addresses = self._find_addresses(credentials)
        self._lock.tell(self._addresses.ui_url)
        self._make_processes(self._addresses)
        await self._start_processes()
        parts: list[Keepable] = [self._postgres, self._temporal, *self._simulators, *self._workers]
        self._keeper = Keeper(parts, on_restart=self._note_restart)
        write_atomically(self.environment_file, json.dumps(self._addresses.environment(), indent=2) + "\n")

    async def keep(self) -> None:
        """Start dead processes again, with growing pauses, until cancelled."""
        while True:
            self._note_deaths()
            self._keeper.tick()
            await self._note_returns()
            await asyncio.sleep(_LOOK_EVERY)

    async def stop(self) -> None:
        """Stop everything, the last started first; within seconds, since whoever lingers is killed.

        Raises:
            ExceptionGroup: Some part could not be stopped; the others were.
        """
        if not self._lock.is_held:
            return
        began = monotonic()
        self._emit(Stopping())
        self.environment_file.unlink(missing_ok=True)
        try:
            await asyncio.to_thread(self._stop_all)
        finally:
            self._lock.release()
        self._emit(Stopped(monotonic() - began))

    def kill_processes(self) -> None:
        """End workers and simulators at once, while `stop` is still waiting for them."""
        for process in (*self._workers, *self._simulators):
            process.kill()

    # --- starting ---------------------------------------------------------------------------------------------

    def _clear_up(self) -> None:
        """End the processes that a killed stack left behind, and throw disposable data away."""
        for record_file in sorted((self.state_dir / "run").glob("*.pid")):
            if (left_over := load_running(record_file)) is not None:
                terminate(left_over, grace=STOP_GRACE)
            record_file.unlink(missing_ok=True)
        marker = self.state_dir / _DISPOSABLE
        if self._disposable and not marker.exists() and any((self.state_dir / part).exists() for part in _DATA):
            raise Conflict(f"{self.state_dir} holds the data of a stack that is to last: choose another --state-dir")
        if self._disposable:
            self._postgres.delete_data()
            self._temporal.delete_data()
            for folder in (self.state_dir / "simulators", self.logs):
                shutil.rmtree(folder, ignore_errors=True)
            marker.touch()

    async def _start_postgres(self, credentials: Credentials) -> None:
        began = self._begin("PostgreSQL")
        await asyncio.to_thread(self._postgres.start)
        version = await asyncio.to_thread(prepare_databases, self._postgres, credentials)
        where = f"{LOOPBACK}:{self._postgres.port}, databases {STATE} and {ORDERS}"
        self._emit(Ready(f"PostgreSQL {version}", where, monotonic() - began))

    async def _start_temporal(self) -> None:
        began = self._begin("Temporal")
        await asyncio.to_thread(self._temporal.start)
        self._client = await Client.connect(self._temporal.address)
        version = await server_version(self._client)
        where = f"{self._temporal.address}, UI {self._temporal.ui_url}"
        self._emit(Ready(f"Temporal {version}", where, monotonic() - began))

    def _find_addresses(self, credentials: Credentials) -> Addresses:
        server = self._postgres
        return Addresses(
            state_dir=self.state_dir,
            postgres=f"{LOOPBACK}:{server.port}",
            state_url=server.dsn(STATE, APP, credentials.app_password),
            orders_url=server.dsn(ORDERS, APP, credentials.app_password),
            supervisor_url=server.dsn(STATE, SUPERVISOR, credentials.supervisor_password),
            admin_state_url=server.dsn(STATE),
            admin_orders_url=server.dsn(ORDERS),
            temporal=self._temporal.address,
            ui_url=self._temporal.ui_url or "",
            simulators_url=f"http://{LOOPBACK}:{free_port(SIMULATORS_PORT)}",
            callback_port=free_port(CALLBACK_PORT),
            callback_secret=credentials.callback_secret,
        )

    def _make_processes(self, addresses: Addresses) -> None:
        port = addresses.simulators_url.rsplit(":", 1)[1]
        simulators = ["-m", "simulators", "--port", port, "--state-dir", str(self.state_dir / "simulators")]
        environment = worker_environment(addresses, ROOT, self._worker_env, supervises=True)
        self._simulators = [self._process("simulators", simulators, without_settings(environment))]
        for number in range(1, self._count + 1):
            roles = _ROLES[0 if number == 1 else 1]
            environment = worker_environment(addresses, ROOT, self._worker_env, supervises=number == 1)
            arguments = [str(ROOT / "worker.py"), "--roles", roles]
            self._workers.append(self._process(f"worker-{number}", arguments, environment))

    def _process(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
        log, record = self.logs / f"{name}.log", self.state_dir / "run" / f"{name}.pid"
        return ManagedProcess(name, [sys.executable, *arguments], environment, log, record)

    async def _start_processes(self) -> None:
        """Start all side by side, then wait for each."""
        began = monotonic()
        for process in (*self._simulators, *self._workers):
            process.start()
        for process in (*self._simulators, *self._workers):
            self._begin(_label(process))
            await _until(lambda p=process: self._is_ready(p), process)
            self._emit(Ready(_label(process), self._detail(process), monotonic() - began))

    def _begin(self, part: str) -> float:
        self._emit(Starting(part))
        return monotonic()

    # --- running ----------------------------------------------------------------------------------------------

    async def _is_ready(self, process: ManagedProcess) -> bool:
        if (pid := process.pid) is None or self._client is None:
            return False
        if process in self._simulators:
            return await answers(f"{self.addresses.simulators_url}/health")
        if process is self._workers[0] and not await answers(f"{self.addresses.callback_url}/health"):
            return False
        return await polls(self._client, pid)

    def _detail(self, process: ManagedProcess) -> str:
        if process in self._simulators:
            return self.addresses.simulators_url
        roles = _ROLES[0 if process is self._workers[0] else 1]
        return f"process {process.pid}: {roles.replace(',', ', ')}"
