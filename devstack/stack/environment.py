"""Where the parts of an embedded stack are, and the environment variables that lead other processes there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from domain.packages import SAMPLES
from runtime.settings import Settings
from runtime.shell import plain_environment

SERVICES = ("stock", "payments", "shipping", "mail", "cloud")
NAMESPACE = "default"

_FOR_OWNERS = ("SAS_ADMIN_DATABASE_URL", "SAS_ADMIN_ORDERS_URL")
_SERVICE = "SAS_SERVICES__"
_FOR_THE_SUPERVISOR = "SAS_SUPERVISOR_DATABASE_URL"
_DEFAULTS = {"SAS_SHUTDOWN_GRACE": "PT5S"}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parts listen, all on 127.0.0.1, and under which names their databases are opened."""

    state_dir: Path
    postgres: str
    state_url: str
    supervisor_url: str
    orders_url: str
    admin_state_url: str
    admin_orders_url: str
    temporal: str
    ui_url: str
    simulators_url: str
    callback_port: int
    callback_secret: str

    @property
    def callback_url(self) -> str:
        """Base URL under which services answer later."""
        return f"http://127.0.0.1:{self.callback_port}"

    def services(self) -> dict[str, str]:
        """Base URLs of the simulated services, and of any other that our own environment names: a new task type's."""
        ours = {n.removeprefix(_SERVICE).lower(): u for n, u in os.environ.items() if n.startswith(_SERVICE)}
        return ours | {s: f"{self.simulators_url}/{s}" for s in SERVICES}

    def environment(self) -> dict[str, str]:
        """The SAS_* and TEMPORAL_* variables that commands need."""
        return {
            "SAS_STATE_DIR": str(self.state_dir),
            SAMPLES: os.environ.get(SAMPLES, ""),
            "SAS_DATABASE_URL": self.state_url,
            "SAS_ORDERS_URL": self.orders_url,
            _FOR_THE_SUPERVISOR: self.supervisor_url,
            "SAS_ADMIN_DATABASE_URL": self.admin_state_url,
            "SAS_ADMIN_ORDERS_URL": self.admin_orders_url,
            **{f"{_SERVICE}{s.upper()}": url for s, url in self.services().items()},
            "SAS_CALLBACK_HOST": "127.0.0.1",
            "SAS_CALLBACK_PORT": str(self.callback_port),
            "SAS_CALLBACK_URL": self.callback_url,
            "SAS_CALLBACK_SECRET": self.callback_secret,
            "SAS_UI_URL": self.ui_url,
            "TEMPORAL_ADDRESS": self.temporal,
            "TEMPORAL_NAMESPACE": NAMESPACE,
            "TEMPORAL_CONFIG_FILE": os.devnull,  # a profile of the user's would add its key and its TLS
        }

    def settings(self) -> Settings:
        """Settings of a process that works on this stack, whatever its own environment says about places."""
        return Settings(
            state_dir=self.state_dir,
            database_url=SecretStr(self.state_url),
            orders_url=SecretStr(self.orders_url),
            supervisor_database_url=SecretStr(self.supervisor_url),
            admin_database_url=SecretStr(self.admin_state_url),
            admin_orders_url=SecretStr(self.admin_orders_url),
            services=self.services(),
            callback_port=self.callback_port,
            callback_url=self.callback_url,
            callback_secret=SecretStr(self.callback_secret),
            ui_url=self.ui_url,
        )


def worker_environment(addresses: Addresses, extra: Mapping[str, str], *, supervises: bool) -> dict[str, str]:
    """Environment of a worker: ours without other servers' places, then the stack's, then `extra`.

    A worker gets no owner's address, and only one that supervises gets the Supervisor's.
    """
    ours = {n: v for n, v in os.environ.items() if n.startswith("SAS_")}
    withheld = _FOR_OWNERS if supervises else (*_FOR_OWNERS, _FOR_THE_SUPERVISOR)
    merged = {**_DEFAULTS, **ours, **addresses.environment(), **extra}
    return {**plain_environment(), **{n: v for n, v in merged.items() if n not in withheld}}
