"""What may stand in a setting: durations, addresses, folders, and what is said of a wrong one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

_UNITS: Mapping[str, float] = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_PART = rf"{_NUMBER}\s*(ms|min|s|m|h|d)\s*"
_HIGHEST_PORT = 65_535


def between(least: str, most: str) -> WrapValidator:
    """A duration within these bounds, as people write it, in ISO 8601 or in plain seconds."""
    low, high = _seconds(least) or 0.0, _seconds(most) or 0.0

    def check(value: Any, parse: ValidatorFunctionWrapHandler) -> timedelta:
        seconds = _seconds(value) if isinstance(value, str) else None
        try:
            found: timedelta = parse(value) if seconds is None else timedelta(seconds=seconds)
        except (ValidationError, OverflowError):
            found = timedelta.max
        if not low <= found.total_seconds() <= high:
            raise ValueError(f"must be a duration from {least} to {most}, such as 500ms, 30s, 10m, 10h or 2d")
        return found

    return WrapValidator(check)


def _seconds(text: str) -> float | None:
    """Seconds of a duration as people write it (`500ms`, `1h30m`, `2`); None if it is no such text."""
    given = text.strip().lower()
    if re.fullmatch(_NUMBER, given):
        return float(given)
    if re.fullmatch(f"(?:{_PART})+", given):
        return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, given))
    return None


def _is_web_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address such as https://host:port/path")
    parts.port  # noqa: B018 (raises ValueError where it is no port)
    return value


def _is_database(value: SecretStr) -> SecretStr:
    if (address := value.get_secret_value()) and not _can_be_read(address):
        raise ValueError("must be an address such as postgresql://user:password@host:5432/database")
    return value


def _can_be_read(address: str) -> bool:
    from psycopg import ProgrammingError  # noqa: PLC0415 (not every process has a database)
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 (likewise)

    try:
        ports = str(conninfo_to_dict(address).get("port") or "").split(",")
    except ProgrammingError:
        return False
    are_ports = all(port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT for port in ports if port)
    return are_ports and address.startswith(("postgresql://", "postgres://"))


def _is_folder(value: Path) -> Path:
    try:
        if value.exists() and not value.is_dir():
            raise ValueError("must be a folder")
    except OSError as error:
        raise ValueError(f"must be a folder: {error.strerror}") from error
    return value


def _has_a_folder(value: Path) -> Path:
    if not value.parent.is_dir() or value.is_dir():
        raise ValueError(f"must be a file in a folder that exists; {value.parent} does not, or it is a folder itself")
    return value


Folder = Annotated[Path, AfterValidator(_is_folder)]
FileInFolder = Annotated[Path, AfterValidator(_has_a_folder)]
WebAddress = Annotated[str, AfterValidator(_is_web_address)]
DatabaseAddress = Annotated[SecretStr, AfterValidator(_is_database)]
Level = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(lambda v: str(v).upper())]
