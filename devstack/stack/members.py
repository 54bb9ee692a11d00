"""The processes of a stack that run our own code: simulated services and workers, and when they are ready."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from temporalio.client import Client

from devstack.processes.managed import ManagedProcess
from devstack.processes.records import EmbeddedServerError
from devstack.stack.environment import Addresses, worker_environment
from devstack.stack.readiness import answers, polls
from domain.namespace import NAMESPACE
from runtime.deployment import deployment_of
from runtime.shell import plain_environment, python_path

ROOT = Path(__file__).resolve().parents[__name__.count(".")]
"""Where our packages are found: the checkout, or where the wheel is installed."""

READY_TIMEOUT = 120.0
"""Seconds. A fresh clone compiles every module first, in several processes at once."""

_ALL_ROLES, _FURTHER_ROLES = "scheduler,agents,supervisor,callbacks", "scheduler,agents"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the stack.

    Attributes:
        process: Starts and ends it.
        does: What it is there for, for people.
        health_url: Must answer before it is ready; None if it does not speak HTTP.
        health_name: How it names itself there, as no other stack's does.
        polls: Must be seen by this Temporal server to take the Scheduler's work before it is ready; None: no worker.
    """

    process: ManagedProcess
    does: str
    health_url: str | None
    health_name: Mapping[str, str]
    polls: Client | None

    @property
    def name(self) -> str:
        """Its name."""
        return self.process.name

    async def is_ready(self) -> bool:
        """Whether it runs and can do its work."""
        if (pid := self.process.pid) is None:
            return False
        if self.health_url is not None and not await answers(self.health_url, self.health_name):
            return False
        return self.polls is None or await polls(self.polls, pid)

    async def wait_ready(self) -> None:
        """Wait for that.

        Raises:
            EmbeddedServerError: It ended or the time is over; the message ends with its log's last lines.
        """
        give_up_at = monotonic() + READY_TIMEOUT
        while not await self.is_ready():
            code = self.process.poll()
            if code is not None or monotonic() > give_up_at:
                what = f"was not ready after {READY_TIMEOUT:g} s" if code is None else f"ended with code {code}"
                raise EmbeddedServerError(f"{self.name} {what}; its log ends:\n{self.process.log_tail()}")
            await asyncio.sleep(0.05)


def make_simulators(addresses: Addresses) -> Member:
    """The simulated services, all in one process."""
    url, folder = addresses.simulators_url, addresses.state_dir / "simulators"
    arguments = [
        "-P",
        "-m",
        f"{NAMESPACE}devstack.simulators",
        "--port",
        url.rsplit(":", 1)[1],
        "--state-dir",
        str(folder),
    ]
    environment = {**plain_environment(), "PYTHONPATH": python_path(str(ROOT))}
    name = {"state_dir": str(folder)}
    return Member(_process(addresses, "simulators", arguments, environment), url, f"{url}/health", name, None)


def make_workers(addresses: Addresses, client: Client, count: int, extra: Mapping[str, str]) -> list[Member]:
    """Workers: the first has all roles, the others schedule and act. `extra`: variables for all of them."""
    return [_worker(addresses, client, number, extra) for number in range(1, count + 1)]


def _worker(addresses: Addresses, client: Client, number: int, extra: Mapping[str, str]) -> Member:
    first = number == 1
    roles = _ALL_ROLES if first else _FURTHER_ROLES
    environment = {**worker_environment(addresses, extra, supervises=first), "PYTHONPATH": python_path(str(ROOT))}
    arguments = ["-P", "-m", f"{NAMESPACE}worker", "--roles", roles]
    process = _process(addresses, f"worker-{number}", arguments, environment)
    health = f"{addresses.callback_url}/health" if first else None
    name = {"deployment": deployment_of(addresses.settings())}
    return Member(process, roles.replace(",", ", "), health, name, client)


def _process(
    addresses: Addresses, name: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> ManagedProcess:
    folder = addresses.state_dir
    return ManagedProcess(
        name,
        [sys.executable, *arguments],
        environment,
        folder / "logs" / f"{name}.log",
        folder / "run" / f"{name}.pid",
    )
