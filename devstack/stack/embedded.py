"""The whole system on this machine: servers, simulated services and workers, started in order and kept running.

The state folder holds all of it: data, logs, pid files, secrets, the lock, and, while the stack is up, `env.json`
with the variables that lead other commands here. What a stack that was killed left behind is ended, or adopted, by
the next one on the same folder.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from unicodedata import category

from temporalio.client import Client

from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import ATTEMPTS, LOOPBACK, free_port, was_taken
from devstack.processes.private_files import make_private
from devstack.processes.records import EmbeddedServerError, load_running, terminate, write_atomically
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from devstack.stack.databases import APP, ORDERS, STATE, SUPERVISOR, Credentials, prepare_databases
from devstack.stack.environment import Addresses
from devstack.stack.events import Ready, StackEvent, Starting, Stopped, Stopping
from devstack.stack.keeper import StackKeeper
from devstack.stack.lock import StackLock
from devstack.stack.members import Member, make_simulators, make_workers
from devstack.stack.readiness import server_version
from domain.faults import Conflict, UsageError
from domain.search_attributes import SEARCH_ATTRIBUTES
from runtime.shell import leave_shell_behind

POSTGRES_PORT, TEMPORAL_PORT, UI_PORT, SIMULATORS_PORT, CALLBACK_PORT = 54329, 7233, 8233, 8790, 8787
"""Ports to prefer; any free ones where these are taken."""

STOP_GRACE_S = 10.0
_DISPOSABLE = "disposable"
_DATA = ("postgres", "temporal", "simulators")
_PRIVATE = ("simulators", "logs", "run")


class EmbeddedStack:
    """PostgreSQL, Temporal, the simulated services and some workers, on one state folder.

    Call everything from the main thread, `start` and `stop` once each; `stop` also after a `start` that failed.

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
        self._members: list[Member] = []
        self._addresses: Addresses | None = None

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

    def process(self, name: str) -> ManagedProcess:
        """The process of that name: `simulators`, `worker-1`, `worker-2`, …; KeyError if there is none."""
        return {m.name: m.process for m in self._members}[name]

    def pids(self) -> dict[str, int | None]:
        """Process ids by name, None for what does not run just now."""
        servers = {"postgres": self._postgres.pid, "temporal": self._temporal.pid}
        return {**servers, **{m.name: m.process.pid for m in self._members}}

    async def start(self) -> None:
        """Start everything in order, and return once all of it can do its work.

        From now on this process, too, connects as the stack says and not as the shell does.

        Raises:
            UsageError: The folder can't be made, or its name holds line breaks and the like.
            Conflict: The folder's stack is up already, or its data must not be thrown away.
            EmbeddedServerError: A part did not come up; the message ends with the last lines of its log.
        """
        leave_shell_behind()
        if any(category(character) in ("Cc", "Cs") for character in str(self.state_dir)):
            raise UsageError(f"the state folder {str(self.state_dir)!r} has a name that can't be written down")
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the state folder {str(self.state_dir)!r} can't be made: {error.strerror}") from error
        self._lock.acquire()
        await asyncio.to_thread(self._clear_up)
        for folder in _PRIVATE:
            make_private(self.state_dir / folder)
        credentials = Credentials.of(self.state_dir)
        await self._start_postgres(credentials)
        client = await self._start_temporal()
        self._lock.tell(self._temporal.ui_url)
        await self._start_members(credentials, client)
        write_atomically(self.environment_file, json.dumps(self.addresses.environment(), indent=2) + "\n")

    async def keep(self) -> None:
        """Start what dies again, with growing pauses, until cancelled."""
        await StackKeeper((self._postgres, self._temporal), self._members, self._emit).run()

    async def stop(self) -> None:
        """Stop everything, the last started first. Bounded in time: what lingers is killed.

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

    def kill_members(self) -> None:
        """End workers and simulators at once, while `stop` still waits for them."""
        for member in self._members:
            member.process.kill()

    def _clear_up(self) -> None:
        """End the processes that a killed stack left behind, and throw disposable data away."""
        for record_file in sorted((self.state_dir / "run").glob("*.pid")):
            if (left_over := load_running(record_file)) is not None:
                terminate(left_over, grace=STOP_GRACE_S)
            record_file.unlink(missing_ok=True)
        if not self._disposable:
            return
        marker = self.state_dir / _DISPOSABLE
        if not marker.exists() and any((self.state_dir / part).exists() for part in _DATA):
            raise Conflict(f"{self.state_dir} holds the data of a stack that is to last: choose another --state-dir")
        marker.touch()
        self._postgres.delete_data()
        self._temporal.delete_data()
        for folder in ("simulators", "logs"):
            shutil.rmtree(self.state_dir / folder, ignore_errors=True)

    async def _start_postgres(self, credentials: Credentials) -> None:
        began = self._begin("PostgreSQL")
        await asyncio.to_thread(self._postgres.start)
        version = await asyncio.to_thread(prepare_databases, self._postgres, credentials)
        where = f"{LOOPBACK}:{self._postgres.port}, databases {STATE} and {ORDERS}"
        self._emit(Ready(f"PostgreSQL {version}", f"on {where}", monotonic() - began))

    async def _start_temporal(self) -> Client:
        began = self._begin("Temporal")
        await asyncio.to_thread(self._temporal.start)
        client = await Client.connect(self._temporal.address)
        version = await server_version(client)
        self._emit(
            Ready(
                f"Temporal {version}", f"on {self._temporal.address}, UI {self._temporal.ui_url}", monotonic() - began
            )
        )
        return client

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

    async def _start_members(self, credentials: Credentials, client: Client) -> None:
        """Start all side by side, then wait for each in order; again with other ports where one was taken."""
        began = self._begin("simulated services and workers")
        for attempt in range(1, ATTEMPTS + 1):
            self._addresses = self._find_addresses(credentials)
            workers = make_workers(self._addresses, client, self._count, self._worker_env)
            self._members = [make_simulators(self._addresses), *workers]
            for member in self._members:
                member.process.start()
            try:
                for member in self._members:
                    await member.wait_ready()
                    self._emit(Ready(member.name, member.does, monotonic() - began))
            except EmbeddedServerError as error:
                if not was_taken(str(error)) or attempt == ATTEMPTS:
                    raise
                await asyncio.to_thread(self._stop_members)
            else:
                return

    def _begin(self, part: str) -> float:
        self._emit(Starting(part))
        return monotonic()

    def _stop_all(self) -> None:
        self._stop_members(then=(self._temporal.stop, self._postgres.stop))

    def _stop_members(self, then: Sequence[Callable[[], None]] = ()) -> None:
        """End the workers, side by side, then what they call, then the rest."""
        workers = [m.process for m in self._members if m.polls is not None]
        simulators = [m.process for m in self._members if m.polls is None]
        for process in workers:
            process.request_stop()
        errors: list[Exception] = []
        stops: list[Callable[[], None]] = [partial(p.stop, STOP_GRACE_S) for p in (*workers, *simulators)]
        for stop in (*stops, *then):
            try:
                stop()
            except (OSError, RuntimeError) as error:  # the others are stopped all the same
                errors.append(error)
        if errors:
            raise ExceptionGroup("not everything could be stopped", errors)
