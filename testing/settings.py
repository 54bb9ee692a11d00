"""Settings for tests: quick where production is patient, and as variables of another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from devstack.processes.ports import LOOPBACK
from devstack.stack.environment import SERVICES
from domain.packages import SAMPLES
from runtime.settings import Settings


def settings_at(ports: Mapping[str, int], given: Mapping[str, Any], services: Iterable[str] = SERVICES) -> Settings:
    """Settings of a process that reaches everything at these ports, these services too; `given` are over ours."""

    def address(database: str, role: str) -> SecretStr:
        return SecretStr(f"postgresql://{role}:{role}@{LOOPBACK}:{ports['postgres']}/{database}")

    ours: dict[str, Any] = {
        "database_url": address("state", "app"),
        "orders_url": address("orders", "app"),
        "supervisor_database_url": address("state", "sup"),
        "services": {s: f"http://{LOOPBACK}:{ports['services']}/{s}" for s in services},
        "callback_url": f"http://{LOOPBACK}:{ports['callbacks']}",
        "callback_secret": SecretStr("test-secret" * 3),
        "claim_within": timedelta(seconds=2),
        "poll_interval": timedelta(milliseconds=250),
        "sweep_interval": timedelta(seconds=1),
        "orphan_grace": timedelta(seconds=2),
        "shutdown_grace": timedelta(seconds=2),
    }
    return Settings(**(ours | dict(given)))


def environment(settings: Settings) -> dict[str, str]:
    """The environment that gives another process the same settings."""
    found = {SAMPLES: "1"}
    for name, value in settings.model_dump(mode="python").items():
        key = f"SAS_{name.upper()}"
        if value is None:
            continue
        if isinstance(value, dict):
            found |= {f"{key}__{k.upper()}": str(v) for k, v in value.items()}
        elif isinstance(value, SecretStr):
            found[key] = value.get_secret_value()
        elif hasattr(value, "total_seconds"):
            found[key] = str(value.total_seconds())
        else:
            found[key] = str(value)
    return found
