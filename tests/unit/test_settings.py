"""Settings: durations as people write them, bounds, and what is said of a wrong one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from domain.faults import UsageError
from runtime.settings import Settings, read_settings, unknown_settings


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("SAS_")]:
        monkeypatch.delenv(name)


@pytest.mark.failure(96)
@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("10m", 600),
        ("10 min", 600),
        ("10h", 36_000),
        ("2d", 172_800),
        ("1h30m", 5_400),
        ("1.5h", 5_400),
        ("20", 20),
        (".5", 0.5),
        ("PT10S", 10),
        ("P1DT1H", 90_000),
    ],
)
def test_duration_is_read_as_people_write_it(written: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_POLL_INTERVAL", written)
    assert read_settings().poll_interval == timedelta(seconds=seconds)


WRONG: Mapping[str, tuple[str, str]] = {
    "10x": ("SAS_STUCK_AFTER", "10h"),
    "h10": ("SAS_STUCK_AFTER", "10h"),
    "nan": ("SAS_CLAIM_WITHIN", "30s"),
    "inf": ("SAS_CLAIM_WITHIN", "30s"),
    "-5": ("SAS_SHUTDOWN_GRACE", "0s"),
    "0": ("SAS_POLL_INTERVAL", "50ms"),
    "1ms": ("SAS_POLL_INTERVAL", "50ms"),
    "0.1": ("SAS_SWEEP_INTERVAL", "1s"),
    "99999999999999d": ("SAS_ORPHAN_GRACE", "30d"),
    "70000": ("SAS_CALLBACK_PORT", "65535"),
    "-1": ("SAS_CALLBACK_PORT", "0"),
    "1e9": ("SAS_TASK_SLOTS", "integer"),
    "501": ("SAS_TASK_SLOTS", "500"),
    "00": ("SAS_SWEEP_PAGE", "1"),
    "NaN": ("SAS_RECOVERY_PER_S", "finite"),
    "Infinity": ("SAS_RECOVERY_PER_S", "finite"),
    "0.0": ("SAS_RECOVERY_PER_S", "0"),
    "loud": ("SAS_LOG_LEVEL", "WARNING"),
    "localhost": ("SAS_UI_URL", "https://"),
    "ftp://payments": ("SAS_SERVICES__PAYMENTS", "https://"),
    "http://payments:99999": ("SAS_SERVICES__PAYMENTS", "65535"),
    "not json": ("SAS_SERVICES", "JSON"),
    "/no/such/folder/alive": ("SAS_HEALTH_FILE", "folder"),
    "/": ("SAS_HEALTH_FILE", "folder"),
    os.devnull: ("SAS_STATE_DIR", "folder"),
}


@pytest.mark.failure(96)
@pytest.mark.parametrize("value", WRONG)
def test_wrong_setting_is_refused_by_its_name_with_a_right_form(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, form = WRONG[value]
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        read_settings()
    said = str(refused.value)
    assert said.startswith(f"{name}: ")
    assert form in said
    assert value.lower() in said.lower() or name == "SAS_SERVICES"


@pytest.mark.failure(96)
def test_all_wrong_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_SWEEP_INTERVAL", "soon")
    monkeypatch.setenv("SAS_CALLBACK_PORT", "http")
    with pytest.raises(UsageError, match=r"(?s)SAS_SWEEP_INTERVAL: .*'soon'.*SAS_CALLBACK_PORT: .*'http'"):
        read_settings()


@pytest.mark.failure(112)
@pytest.mark.parametrize(
    "address",
    [
        "app:hunter2 at db",
        "host=db password=hunter2",
        "postgresql://app:hunter2@[::1/db",
        "postgresql://app:hunter2@db:http/state",
        "postgresql://app:hunter2@db:70000/state",
        "postgresql://app:hunter2@db/state?ssl=maybe",
        "postgresql://app:hunter2 and more@db/state",
    ],
)
def test_password_in_a_wrong_setting_is_not_shown(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_DATABASE_URL", address)
    monkeypatch.setenv("SAS_SERVICES__MAIL", "ftp://me:hunter2@mail")
    with pytest.raises(UsageError, match=r"SAS_DATABASE_URL: .*SAS_SERVICES__MAIL: ") as refused:
        read_settings()
    assert "hunter2" not in f"{refused.value} {refused.value.__cause__}"


def test_address_of_a_database_may_name_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "postgresql://app:p%40ss@one:5432,[::1]:5433/state?target_session_attrs=primary"
    monkeypatch.setenv("SAS_DATABASE_URL", address)
    assert read_settings().database_url.get_secret_value() == address


@pytest.mark.failure(96)
def test_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_HEALTH_FILE", "")
    monkeypatch.setenv("SAS_TASK_SLOTS", "")
    found = read_settings()
    assert (found.health_file, found.task_slots) == (None, Settings().task_slots)


def test_health_file_may_lie_in_any_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAS_HEALTH_FILE", str(tmp_path / "alive"))
    assert read_settings().health_file == tmp_path / "alive"


@pytest.mark.failure(96)
def test_misspelt_setting_is_remarked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAS_POLL_INTERVAL", "SAS_SERVICES__LOYALTY", "SAS_DEFINITIONS"):
        monkeypatch.setenv(name, "http://127.0.0.1")
    assert unknown_settings() == []
    monkeypatch.setenv("SAS_POL_INTERVAL", "1s")
    assert unknown_settings() == ["SAS_POL_INTERVAL is no setting: is SAS_POLL_INTERVAL meant?"]
