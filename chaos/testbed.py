"""One whole stack for runs with faults: its own servers, services and workers, each of which can be hurt.

Proxies stand before PostgreSQL, Temporal, the services and the callbacks; what the run itself asks goes past them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal

import psutil  # type: ignore[import-untyped]
import psycopg
from temporalio.client import Client
from temporalio.envconfig import ClientConfig

from audit.evidence import SubmissionReply
from chaos.fork_server import Child, ForkServer
from chaos.processes import Part, Server, Worker
from chaos.proxy import Proxy
from definitions import registry
from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import LOOPBACK, free_port
from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from devstack.stack.environment import SERVICES
from domain.definition import Registry
from domain.faults import Unreachable
from domain.messages import Json
from domain.search_attributes import SEARCH_ATTRIBUTES
from domain.states import SETTLED
from domain.undo_requests import UndoRequest, UndoVerdict
from runtime.plugin import new_plugin
from runtime.roles import Role
from runtime.wiring import Stores, open_stores
from store.admission import CapReached
from store.reads import Reads, open_reads
from store.submission import Accepted, DeadLettered, Submission, SubmissionOutcome, digest_of
from testing.databases import make_databases, publish_all
from testing.settings import environment, settings_at
from testing.simulators import Simulators, simulator_process
from testing.waiting import eventually

MOST_SIGNALS, MOST_BUFFERED = 100, 20
LOWERED_LIMITS = {
    "limit.historyCount.error": "1000",  # of 51,200
    "limit.historySize.error": "1000000",  # of 50 MiB
    "limit.blobSize.error": "65536",  # of 2 MiB
    "limit.blobSize.warn": "65536",  # nothing smaller is refused
    "history.maximumSignalsPerExecution": str(MOST_SIGNALS),  # of 10,000
    "history.maximumBufferedEventsBatch": str(MOST_BUFFERED),  # of 100: a workflow task fails then
}

_WORDS: dict[type, Literal["accepted", "conflict", "refused", "unreachable"]] = {
    Accepted: "accepted",
    DeadLettered: "conflict",
    CapReached: "refused",
    type(None): "unreachable",
}


class ChaosTestbed:
    """Use it with `async with`.

    Args:
        folder: For data, logs and sockets. workers: How many, each with `roles`.
        proxied: Whether the workers go through the proxies. seed: Of the proxies' draws.
        cluster: Whether Temporal is a cluster of processes on PostgreSQL, as in production.
        fork_server: Forks the workers; the testbed's own if None.
        stand_ins: Actions of services that are played as well.
        variables: Further variables of every worker. settings: Over those of the testbed, which is impatient.

    Attributes:
        settings: Of a worker. direct: Of the run itself, past the proxies; owner: the state store, as its owner.
        to_temporal: Variables of a client, past the proxies. answers: What submitters were told.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        roles: Sequence[Role] = tuple(Role),
        proxied: bool = True,
        cluster: bool = False,
        fork_server: ForkServer | None = None,
        stand_ins: Sequence[str] = (),
        seed: int = 0,
        variables: Mapping[str, str] = MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self.folder, self._count, self.roles = folder, workers, roles
        self._fork_server = fork_server or ForkServer()
        self._temporal_access: Mapping[str, str] = {}
        self._proxied, self._cluster, self._forks_alone = proxied, cluster, fork_server is None
        self._seed, self._variables, self._settings, self._stand_ins = seed, variables, settings, stand_ins
        self._stack = AsyncExitStack()
        self.answers: list[SubmissionReply] = []
        self.proxies: dict[str, Proxy] = {}

    async def __aenter__(self) -> ChaosTestbed:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        left = [p for s in self.servers for p in s.seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not left, f"processes are left: {left}"

    async def _open(self, stack: AsyncExitStack) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._start_servers(stack)
        for name, port in self._ports().items():
            http = name in ("services", "callbacks")
            proxy = Proxy((LOOPBACK, port), http=http, seed=self._seed)
            self.proxies[name] = await stack.enter_async_context(proxy)
        self.owner = make_databases(self.postgres.part.dsn)
        given = {"state_dir": self.folder, "callback_port": self._callback_port, **self._settings}
        services = {*SERVICES, *(action.partition(".")[0] for action in self._stand_ins)}
        self.direct = settings_at(self._ports(), given, services)
        ports = {name: proxy.port for name, proxy in self.proxies.items()} if self._proxied else self._ports()
        self.settings = settings_at(ports, given, services)
        self.stores: Stores = await stack.enter_async_context(open_stores(self.direct, size=4))
        await publish_all(self.stores.admission)
        self.reads: Reads = await stack.enter_async_context(open_reads(self.direct.database_url.get_secret_value()))
        self.to_temporal = {"TEMPORAL_ADDRESS": f"{LOOPBACK}:{self._ports()['temporal']}", **self._temporal_access}
        config = ClientConfig.load_client_connect_config(disable_file=True, override_env_vars=self.to_temporal)
        self.client = await Client.connect(**config, plugins=[new_plugin()])
        if self._forks_alone:
            await stack.enter_async_context(self._fork_server)
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SAS_", "TEMPORAL_"))},
            **environment(self.settings),
            **self.to_temporal,
            "TEMPORAL_ADDRESS": f"{LOOPBACK}:{ports['temporal']}",
            "ROLES": ",".join(self.roles),
            **self._variables,
        }
        self.workers = [Worker(n, self._fork_server, self._environment, self.folder) for n in range(self._count)]
        for worker in self.workers:
            stack.push_async_callback(worker.kill)

    async def _start_servers(self, stack: AsyncExitStack) -> None:
        # Without fsync a crash of the machine would lose data, a crash of the server does not.
        durable = {"synchronous_commit": "on", "full_page_writes": "on"}
        postgres = EmbeddedPostgres(self.folder, durable=False, extra_settings=durable)
        self.postgres = Server(postgres)
        self.temporal: tuple[Server[EmbeddedTemporal | ManagedProcess], ...]
        self._services_port, self._callback_port = free_port(), free_port()
        self.services = Server(simulator_process(self.folder, self._services_port, self._stand_ins))
        for server in (self.postgres, self.services):
            stack.push_async_callback(server.stop)
        beside = asyncio.gather(self.postgres.start(), self.services.start())
        if self._cluster:
            await beside
            from chaos.temporal_cluster import TemporalCluster  # needs packages that a rehearsal does not

            cluster = TemporalCluster(self.folder / "temporal", postgres, LOWERED_LIMITS)
            self.temporal = await cluster.start(stack)
            self._temporal_port, self._temporal_access = cluster.port, cluster.of_client
        else:
            temporal = EmbeddedTemporal(
                self.folder, ui_port=0, search_attributes=SEARCH_ATTRIBUTES, dynamic_config=LOWERED_LIMITS
            )
            alone = Server(temporal)
            stack.push_async_callback(alone.stop)
            await asyncio.gather(beside, alone.start())
            self.temporal = (alone,)
            self._temporal_port = temporal.port
        self.servers: Sequence[Server[Part]] = (self.postgres, *self.temporal, self.services)
        self.simulators = Simulators(f"http://{LOOPBACK}:{self._services_port}")
        stack.callback(self.simulators.close)

    def _ports(self) -> dict[str, int]:
        return {
            "postgres": self.postgres.part.port,
            "temporal": self._temporal_port,
            "services": self._services_port,
            "callbacks": self._callback_port,
        }

    # --- work -------------------------------------------------------------------------------------------------

    def worker(self, number: int) -> Worker:
        """One of the workers; none runs before it is started."""
        return self.workers[number]

    async def process(self, **more: str) -> Child:
        """A process that is no worker: see `chaos/worker.py`."""
        return await self._fork_server.start({**self._environment, **more}, self.folder / "others.log")

    async def submit(
        self, record: Json, task_id: str, definition: str = "order", known: Registry | None = None
    ) -> SubmissionReply:
        """Submit, and note what was answered. `known`: the definitions that the submitter has, if not the testbed's."""
        submission, said = Submission(task_id=task_id, definition=definition, record=record), None
        with suppress(Unreachable):
            said = await replace(self.stores, registry=known or registry()).desk.submit(submission)
        return self.note(submission, said, known)

    def note(
        self, submission: Submission, said: SubmissionOutcome | None, known: Registry | None = None
    ) -> SubmissionReply:
        """Note what a submitter was told; None: nothing."""
        self.answers.append(reply_of(submission, said, known))
        return self.answers[-1]

    async def compensate(self, task_id: str, reason: str = "a test asks for it") -> UndoVerdict:
        """Ask for undo."""
        return await self.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="tests", reason=reason))

    async def settle(self, within_s: float = 60, ids: Sequence[str] | None = None) -> None:
        """Wait until every task, or those, is settled; stores out of reach are waited out.

        Raises:
            TimeoutError: Naming those that are not.
        """
        query = "SELECT task_id, state FROM task WHERE state <> ALL(%s) AND (%s::text[] IS NULL OR task_id = ANY(%s))"
        wanted = None if ids is None else list(ids)
        left: list[Any] = ["nobody was asked"]

        async def settled() -> bool:
            nonlocal left
            with suppress(psycopg.OperationalError):
                async with await psycopg.AsyncConnection.connect(self.owner, connect_timeout=2) as connection:
                    left = await (await connection.execute(query, (list(SETTLED), wanted, wanted))).fetchall()
            return not left

        try:
            await eventually(settled, within_s=within_s)
        except TimeoutError:
            raise TimeoutError(f"{len(left)} tasks are not settled after {within_s:g} s: {left[:5]}") from None

    def give_roles(self, *roles: str) -> None:
        """What workers do that are started from now on."""
        self._environment["ROLES"] = ",".join(roles)


def reply_of(submission: Submission, said: SubmissionOutcome | None, known: Registry | None = None) -> SubmissionReply:
    """What a submitter was told, as it keeps it; None: nothing."""
    definition = (known or registry()).newest(submission.definition)
    assert definition is not None
    record = definition.record.model_validate(submission.record).model_dump(mode="json")
    return SubmissionReply(
        task_id=submission.task_id,
        submitter=submission.submitter,
        digest=digest_of(definition.name, record),
        verdict=_WORDS[type(said)],
        new=isinstance(said, Accepted) and said.new,
    )
