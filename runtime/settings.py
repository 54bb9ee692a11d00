"""Settings of every process, read from environment variables that begin with `SAS_`.

Temporal's own connection settings are not here: they follow Temporal's conventions (`TEMPORAL_ADDRESS`,
`TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, …), see `runtime/temporal.py`.
"""

from __future__ import annotations

import os
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from domain.faults import Unreachable, UsageError
from domain.packages import SAMPLES
from domain.redaction import is_secret, know, secrets_in, secrets_of
from runtime.setting_values import DatabaseAddress, FileInFolder, Folder, Level, WebAddress, between

LEAST_SECRET = 32
"""Characters of a secret that signs, at least."""

_OWN = ("SAS_", "TEMPORAL_", "PG")
"""How variables begin that this process, or a library of it, reads."""

_ELSEWHERE = ("SAS_AGENTS", "SAS_BY", "SAS_DEFINITIONS", "SAS_PARENT_PID", SAMPLES)
"""Read by other modules."""


class Settings(BaseSettings):
    """What a process needs to know. Durations are as people write them (`500ms`, `10m`), ISO 8601 or plain seconds.

    A variable that is empty counts as not set. Programs read them with `read_settings`.
    """

    model_config = SettingsConfigDict(
        env_prefix="SAS_", env_nested_delimiter="__", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True
    )

    state_dir: Folder = Field(Path(".local"), description="where the embedded stack keeps its data and pid files")
    database_url: DatabaseAddress = Field(
        SecretStr(""),
        description="state store, as the application's role: postgresql://user:password@host/db",
    )
    supervisor_database_url: DatabaseAddress = Field(
        SecretStr(""),
        description="state store, as the Supervisor's own role, which may only request recovery",
    )
    orders_url: DatabaseAddress = Field(SecretStr(""), description="the orders database (business records)")
    admin_database_url: DatabaseAddress = Field(SecretStr(""), description="state store, as its owner: migrations only")
    admin_orders_url: DatabaseAddress = Field(
        SecretStr(""), description="orders database, as its owner: migrations only"
    )
    services: dict[str, WebAddress] = Field(
        default_factory=dict, description="base URL of each remote service: SAS_SERVICES__PAYMENTS=https://…"
    )

    access: dict[str, dict[str, SecretStr]] = Field(
        default_factory=dict,
        description="credentials of each remote service: SAS_ACCESS__PAYMENTS__TOKEN=…, or the path of a file:"
        " SAS_ACCESS__PAYMENTS__TOKEN_FILE=…",
    )

    task_slots: int = Field(16, ge=1, le=500, description="tasks that one worker holds at once")
    claim_within: Annotated[timedelta, between("500ms", "30d")] = Field(
        timedelta(seconds=10), description="a claim that started nothing expires then"
    )
    poll_interval: Annotated[timedelta, between("50ms", "30d")] = Field(
        timedelta(seconds=2), description="slow poll behind NOTIFY"
    )
    orphan_grace: Annotated[timedelta, between("1s", "30d")] = Field(
        timedelta(seconds=60),
        description="how long a submission may take; one that was not finished then is confirmed, or removed",
    )
    shutdown_grace: Annotated[timedelta, between("0s", "30d")] = Field(
        timedelta(seconds=20), description="time that SIGTERM leaves to running steps"
    )

    max_in_flight: int = Field(
        1_000, ge=1, le=1_000_000_000, description="admission: tasks Pending or Processing, of each definition"
    )
    max_pending: int = Field(500, ge=1, le=1_000_000_000, description="admission: tasks Pending, of each definition")
    max_pending_age: Annotated[timedelta, between("1s", "365d")] = Field(
        timedelta(minutes=5), description="admission: age of the oldest Pending one"
    )

    breaker_failures: int = Field(
        5, ge=1, le=1_000_000, description="attempts in a row that fail before a service's breaker opens"
    )
    breaker_pause: Annotated[timedelta, between("100ms", "30d")] = Field(
        timedelta(seconds=5), description="an open breaker's pause before its first probe"
    )
    breaker_longest_pause: Annotated[timedelta, between("100ms", "30d")] = Field(
        timedelta(minutes=1), description="the pause doubles up to this"
    )
    recovery_per_s: float = Field(
        20.0,
        gt=0,
        le=100_000,
        allow_inf_nan=False,
        description="tasks a second that are let go at most after an outage",
    )
    recovery_ramp: Annotated[timedelta, between("0s", "30d")] = Field(
        timedelta(seconds=10), description="time until it is that many"
    )

    sweep_interval: Annotated[timedelta, between("1s", "30d")] = Field(
        timedelta(seconds=10), description="how often the Supervisor sweeps"
    )
    sweep_page: int = Field(200, ge=1, le=5_000, description="rows a page of a sweep")
    sweep_pages: int = Field(20, ge=1, le=100_000, description="pages a sweep at most")
    sweep_window: Annotated[timedelta, between("1m", "3650d")] = Field(
        timedelta(days=7), description="span of deadlines that one sweep covers, from the oldest"
    )
    stuck_after: Annotated[timedelta, between("1s", "365d")] = Field(
        timedelta(minutes=5), description="an alert if a task is due for so long and nobody claims it"
    )
    undo_stalled_after: Annotated[timedelta, between("1s", "365d")] = Field(
        timedelta(minutes=10), description="an alert if an undo takes longer"
    )

    callback_host: str = Field("127.0.0.1", description="address on which the callbacks role listens")
    callback_port: int = Field(
        8787, ge=0, le=65_535, description="port on which the callbacks role listens; 0 takes a free one"
    )
    callback_url: WebAddress = Field("http://127.0.0.1:8787", description="base URL under which services reach it")
    callback_secret: SecretStr = Field(SecretStr(""), description="signs callback addresses; needed to answer later")
    callback_secret_previous: SecretStr = Field(
        SecretStr(""), description="signed callback addresses until it was replaced; they still count"
    )

    ui_url: WebAddress = Field("http://127.0.0.1:8233", description="base URL of the Temporal UI, for links")
    health_file: FileInFolder | None = Field(
        None, description="file that a worker touches every 5 s while it is ready, for a container's health check"
    )
    log_level: Level = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    def model_post_init(self, _context: Any) -> None:
        """Have what is secret in them taken out of whatever this process shows."""
        given = [getattr(self, name) for name in type(self).model_fields]
        hidden = [value.get_secret_value() for value in given if isinstance(value, SecretStr)]
        credentials = [credential for service in self.access.values() for credential in service.items()]
        hidden += [part for name, value in credentials for part in secrets_of(name, value.get_secret_value())]
        shown = [*self.services.values(), self.callback_url, self.ui_url]
        own = [
            value
            for name, value in os.environ.items()
            if name.startswith(_OWN) and is_secret(name) and not name.endswith("_FILE")
        ]
        know([*hidden, *own, *(secret for address in (*hidden, *shown) for secret in secrets_in(address))])

    def short_secrets(self) -> list[str]:
        """The variables that hold a secret too short to keep forgers out."""
        given = {n: getattr(self, n).get_secret_value() for n in ("callback_secret", "callback_secret_previous")}
        return [f"SAS_{name.upper()}" for name, secret in given.items() if 0 < len(secret) < LEAST_SECRET]


def read_settings() -> Settings:
    """The settings of this process.

    Raises:
        UsageError: Some can't be used; names each variable, its value unless that is secret, and a right form.
    """
    try:
        return Settings()
    except ValidationError as error:
        raise UsageError("; ".join(_problem(e) for e in error.errors())) from error
    except SettingsError as error:
        raise UsageError(f"SAS_SERVICES: must be a JSON object, or one variable a service: {error}") from error


def address(settings: Settings, name: str) -> str:
    """The address in a setting.

    Raises:
        Unreachable: The setting is empty.
    """
    value: SecretStr = getattr(settings, name)
    if not value.get_secret_value():
        raise Unreachable(
            f"SAS_{name.upper()} is not set: point it at the database, or start the embedded stack"
            " with `python starter.py up`"
        )
    return value.get_secret_value()


def _problem(error: Any) -> str:
    name = f"SAS_{'__'.join(str(part) for part in error['loc']).upper()}"
    given = str(error["input"])
    is_secret = Settings.model_fields[str(error["loc"][0])].annotation is SecretStr or "@" in given
    wrong = "what is given" if is_secret else repr(given[:100])
    return f"{name}: {error['msg'].removeprefix('Value error, ')}, not {wrong}"


def unknown_settings() -> list[str]:
    """What is said of each variable that begins with `SAS_` and that nothing reads: a slip of the pen, most likely."""
    known = [*(f"SAS_{n.upper()}" for n in Settings.model_fields), *_ELSEWHERE]
    given = [n.upper() for n in os.environ if n.upper().startswith("SAS_")]
    return [
        f"{name} is no setting" + "".join(f": is {near} meant?" for near in get_close_matches(name, known, n=1))
        for name in sorted(given)
        if name not in known and not name.startswith(("SAS_SERVICES__", "SAS_ACCESS__"))
    ]
