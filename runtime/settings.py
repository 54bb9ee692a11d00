"""Settings of every process, read from environment variables that begin with `SAS_`.

Temporal's own connection settings are not here: they follow Temporal's conventions (`TEMPORAL_ADDRESS`,
`TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, …), see `runtime/temporal.py`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _seconds(value: object) -> object:
    return float(value) if isinstance(value, str) and value.replace(".", "", 1).isdigit() else value


Duration = Annotated[timedelta, BeforeValidator(_seconds)]


class Settings(BaseSettings):
    """What a process needs to know. Durations are ISO 8601 (`PT10S`) or plain seconds."""

    model_config = SettingsConfigDict(env_prefix="SAS_", env_nested_delimiter="__", extra="ignore")

    state_dir: Path = Field(Path(".local"), description="where the embedded stack keeps its data and pid files")
    database_url: SecretStr = Field(
        SecretStr(""),
        description="state store, as the application's role: postgresql://user:password@host/db",
    )
    supervisor_database_url: SecretStr = Field(
        SecretStr(""),
        description="state store, as the Supervisor's own role, which may only request recovery",
    )
    orders_url: SecretStr = Field(SecretStr(""), description="the orders database (business records)")
    admin_database_url: SecretStr = Field(SecretStr(""), description="state store, as its owner: migrations only")
    admin_orders_url: SecretStr = Field(SecretStr(""), description="orders database, as its owner: migrations only")
    services: dict[str, str] = Field(
        default_factory=dict, description="base URL of each remote service: SAS_SERVICES__PAYMENTS=https://…"
    )

    task_slots: int = Field(16, ge=1, le=500, description="tasks that one worker holds at once")
    claim_within: Duration = Field(timedelta(seconds=10), description="a claim that started nothing expires then")
    poll_interval: Duration = Field(timedelta(seconds=2), description="slow poll behind NOTIFY")
    orphan_grace: Duration = Field(
        timedelta(seconds=60),
        description="how long a state row may lack its business record before it is removed",
    )
    shutdown_grace: Duration = Field(timedelta(seconds=20), description="time that SIGTERM leaves to running steps")

    max_in_flight: int = Field(1_000, ge=1, description="admission: tasks Pending or Processing, of each pipeline")
    max_pending: int = Field(500, ge=1, description="admission: tasks Pending, of each pipeline")
    max_pending_age: Duration = Field(timedelta(minutes=5), description="admission: age of the oldest Pending one")

    breaker_failures: int = Field(5, ge=1, description="attempts in a row that fail before a service's breaker opens")
    breaker_pause: Duration = Field(timedelta(seconds=5), description="an open breaker's pause before its first probe")
    breaker_longest_pause: Duration = Field(timedelta(minutes=1), description="the pause doubles up to this")
    recovery_per_s: float = Field(20.0, gt=0, description="tasks a second that are let go at most after an outage")
    recovery_ramp: Duration = Field(timedelta(seconds=10), description="time until it is that many")

    sweep_interval: Duration = Field(timedelta(seconds=10), description="how often the Supervisor sweeps")
    sweep_page: int = Field(200, ge=1, le=5_000, description="rows a page of a sweep")
    sweep_pages: int = Field(20, ge=1, description="pages a sweep at most")
    sweep_window: Duration = Field(
        timedelta(days=7), description="span of deadlines that one sweep covers, from the oldest"
    )
    stuck_after: Duration = Field(
        timedelta(minutes=5), description="an alert if a task is due for so long and nobody claims it"
    )
    undo_stalled_after: Duration = Field(timedelta(minutes=10), description="an alert if an undo takes longer")

    callback_host: str = Field("127.0.0.1", description="address on which the callbacks role listens")
    callback_port: int = Field(8787, description="port on which the callbacks role listens; 0 takes a free one")
    callback_url: str = Field("http://127.0.0.1:8787", description="base URL under which services reach it")
    callback_secret: SecretStr = Field(SecretStr(""), description="signs callback addresses; needed to answer later")

    ui_url: str = Field("http://127.0.0.1:8233", description="base URL of the Temporal UI, for links")
    health_file: Path | None = Field(
        None, description="file that a worker touches every 5 s while it is ready, for a container's health check"
    )
    log_level: str = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
