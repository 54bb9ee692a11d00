"""What commands print: data on standard output, as text for people or JSON for programs; talk on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from io import TextIOWrapper
from typing import Any

from domain.redaction import redact


class Format(StrEnum):
    """How data is printed."""

    TEXT = "text"
    JSON = "json"


class OutputFailed(Exception):
    """Standard output takes no more, for another reason than that nobody reads it."""


def prepare_output() -> None:
    """Let every character be printed, whatever the encoding; a stream that was closed swallows what it is given."""
    for name in ("stdout", "stderr"):
        match getattr(sys, name):
            case TextIOWrapper() as stream:
                stream.reconfigure(errors="backslashreplace")
            case None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open for as long as the process)


def print_note(text: str) -> None:
    """Talk on standard error. One that is gone or full is no reason not to go on."""
    with suppress(OSError):
        print(plain(text), file=sys.stderr, flush=True)


def print_line(text: str) -> None:
    """A line of data for people."""
    with written():
        print(plain(text))


def print_json(value: Any, *, lines: bool = False) -> None:
    """Data for programs: one document, or one line of a stream."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not is_unicode, default=_as_json, indent=None if lines else 2)
    with written():
        print(text, flush=lines)


def flush() -> None:
    """Write out what was printed.

    Raises:
        BrokenPipeError: Nobody reads it any more. OutputFailed: It can't be written.
    """
    with written():
        sys.stdout.flush()


@contextmanager
def written() -> Iterator[None]:
    """Whatever keeps data from standard output, but that nobody reads it any more, is raised as `OutputFailed`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"standard output can't be written: {error.strerror}") from error


def plain(text: str) -> str:
    """The text without secrets, and without control characters: what others wrote can't steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in redact(text))


def compact(value: Any) -> str:
    """JSON in one line, for a cell."""
    return json.dumps(value, ensure_ascii=False, default=_as_json) if value else ""


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
