"""A real Temporal cluster on PostgreSQL, each of its services a process of its own, as in production.

It needs `temporal-server` and `temporal-sql-tool` on the PATH. Schema and namespace are made by the scripts that the
containers run; the services read the same environment variables as Temporal's own image. Clients need a certificate
and an API key.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import randrange

import psycopg

from chaos.processes import Server
from chaos.temporal_access import Access
from devstack.processes.managed import ManagedProcess
from devstack.processes.ports import LOOPBACK, free_port
from devstack.processes.records import EmbeddedServerError
from devstack.servers.postgres import EmbeddedPostgres
from runtime.shell import plain_environment

PROGRAMS = ("temporal-server", "temporal-sql-tool")
_SCRIPTS = Path(__file__).parents[1] / "deploy" / "temporal"
_SECOND = "127.0.0.2"
"""Each member of a service has the same port, so that a second one needs an address of its own."""

_MEMBERS = {
    "temporal frontend": ("frontend", LOOPBACK),
    "temporal internal frontend": ("internal-frontend", LOOPBACK),
    "temporal history": ("history", LOOPBACK),
    "temporal history 2": ("history", _SECOND),
    "temporal matching": ("matching", LOOPBACK),
    "temporal worker": ("worker", LOOPBACK),
}
_ROLE = "temporal"
_DATABASES = {"DBNAME": "temporal", "VISIBILITY_DBNAME": "temporal_visibility"}
_SCRIPT_S = 180.0


def lacking() -> list[str]:
    """Which of the programs are not on the PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


class TemporalCluster:
    """Six processes with their databases in a PostgreSQL that runs.

    Args:
        folder: For logs, pid files and configuration.
        dynamic_config: Keys and JSON values.

    Attributes:
        port: The frontend's.
    """

    def __init__(self, folder: Path, postgres: EmbeddedPostgres, dynamic_config: Mapping[str, str]) -> None:
        if missing := lacking():
            raise EmbeddedServerError(f"a Temporal cluster needs {' and '.join(missing)} on the PATH")
        self._folder, self._postgres, self._dynamic_config = folder, postgres, dynamic_config
        services = sorted({_variable(service) for service, _ in _MEMBERS.values()})
        kinds = ("GRPC_PORT", "MEMBERSHIP_PORT")
        names = [f"{service}_{kind}" for service in services for kind in kinds]
        names += ["FRONTEND_HTTP_PORT", "INTERNAL_FRONTEND_HTTP_PORT"]
        self._ports = {name: _port() for name in names}
        self.port = self._ports["FRONTEND_GRPC_PORT"]
        folder.mkdir(parents=True)
        self._access = Access(folder, _SECOND)
        self._members = [self._member(*named) for named in _MEMBERS.items()]

    async def start(self, stack: AsyncExitStack) -> tuple[Server[ManagedProcess], ...]:
        """Make databases and schema, start every member, make the namespace. `stack` ends them.

        Raises:
            EmbeddedServerError: A script failed; with its last words.
        """
        servers = tuple(Server(member) for member in self._members)
        for server in servers:
            stack.push_async_callback(server.stop)
        await asyncio.to_thread(self._prepare)
        await asyncio.gather(*(server.start() for server in servers))
        where = {"TEMPORAL_ADDRESS": f"{LOOPBACK}:{self.port}", "TEMPORAL_NAMESPACE": "default"}
        await asyncio.to_thread(self._run, "namespace.sh", {**where, **self._access.of_client("temporal-system:admin")})
        return servers

    @property
    def of_client(self) -> Mapping[str, str]:
        """Variables of a client that may do what an application does."""
        return self._access.of_client("default:write")

    def _prepare(self) -> None:
        config = [f"{key}:\n  - value: {value}\n" for key, value in self._dynamic_config.items()]
        (self._folder / "dynamicconfig.yaml").write_text("".join(config))
        with psycopg.connect(self._postgres.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {_ROLE} LOGIN PASSWORD '{_ROLE}'")
            for name in _DATABASES.values():
                connection.execute(f"CREATE DATABASE {name} OWNER {_ROLE}")
        where = {"POSTGRES_HOST": LOOPBACK, "POSTGRES_PORT": str(self._postgres.port), "SQL_PASSWORD": _ROLE}
        self._run("schema.sh", where)

    def _member(self, name: str, place: tuple[str, str]) -> ManagedProcess:
        service, address = place
        file = self._folder / name.replace(" ", "-").lower()
        environment = {**self._environment(), "TEMPORAL_SERVICES": service, "BIND_ON_IP": address}
        return ManagedProcess(
            name,
            [shutil.which(PROGRAMS[0]) or PROGRAMS[0], "start"],
            {**environment, "TEMPORAL_BROADCAST_ADDRESS": address},
            file.with_suffix(".log"),
            file.with_suffix(".pid"),
            ready=partial(_answers, address, self._ports[f"{_variable(service)}_GRPC_PORT"]),
        )

    def _environment(self) -> dict[str, str]:
        return {
            **plain_environment(),
            "DB": "postgres12",
            "POSTGRES_SEEDS": LOOPBACK,
            "DB_PORT": str(self._postgres.port),
            "POSTGRES_USER": _ROLE,
            "POSTGRES_PWD": _ROLE,
            **_DATABASES,
            "NUM_HISTORY_SHARDS": "16",
            "DYNAMIC_CONFIG_FILE_PATH": str(self._folder / "dynamicconfig.yaml"),
            **self._access.of_member,
            **{name: str(port) for name, port in self._ports.items()},
        }

    def _run(self, script: str, variables: Mapping[str, str]) -> None:
        environment = {**plain_environment(), **variables}
        beside_us = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"  # `temporal` comes as a wheel
        done = subprocess.run(
            ["/bin/sh", str(_SCRIPTS / script)],
            env={**environment, "PATH": beside_us},
            capture_output=True,
            text=True,
            timeout=_SCRIPT_S,
            check=False,
        )
        if done.returncode:
            raise EmbeddedServerError(f"{script} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _port() -> int:
    """A free port below those that connections get: nobody takes it while its member is dead.

    Temporal's table of members keeps ports in two bytes, with a sign, so that none is above that anyway.
    """
    while (port := free_port(randrange(20_000, 1 << 15))) >= 1 << 15:  # noqa: S311 (no secret)
        pass
    return port


def _variable(service: str) -> str:
    """A service's name as its variables begin."""
    return service.replace("-", "_").upper()


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=0.5).close()
    except OSError:
        return False
    return True
