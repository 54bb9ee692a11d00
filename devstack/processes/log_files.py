"""Log files of child processes: opened for appending, kept small, read from the end."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

ROTATE_BYTES = 20 * 1024 * 1024
TAIL_BYTES = 64 * 1024


def open_log(path: Path) -> BinaryIO:
    """Opens a log for appending, for us alone; one that has grown past 20 MiB is first set aside as `<name>.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    path.touch(mode=0o600)
    path.chmod(0o600)
    return path.open("ab")


def log_size(path: Path) -> int:
    """Returns the log's length in bytes, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def tail(path: Path, lines: int, *, since: int = 0) -> str:
    """Returns the last lines of a log; of a Go program that has panicked, what it said of that first.

    Args:
        path: the log; a missing one counts as empty.
        lines: how many lines at most.
        since: leave out what was written before this byte.
    """
    try:
        with path.open("rb") as handle:
            size = handle.seek(0, 2)
            handle.seek(max(since, size - TAIL_BYTES) if since <= size else max(0, size - TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    said = text.splitlines()
    panics = [number for number, line in enumerate(said) if line.startswith("panic:")]
    return "\n".join(said[panics[-1] :][:lines] if panics else said[-lines:])
