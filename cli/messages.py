"""The messages in a file: one JSON object, over as many lines as it likes, or one object a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from domain.faults import UsageError
from domain.json_text import is_json

_MARK = b"\xef\xbb\xbf"
"""What some editors put before text in UTF-8."""


@dataclass(frozen=True)
class Message:
    """One message as it came. `line`: the number of its first line, from 1."""

    line: int
    text: bytes


def read_messages(source: str) -> list[Message]:
    """The messages of a file, or of standard input for `-`; blank lines are passed over.

    Raises:
        UsageError: There is no such file, or nothing is in it.
    """
    name = "standard input" if source == "-" else source
    if source == "-" and sys.stdin is None:
        raise UsageError("standard input is closed: a JSON object is expected, or one a line")
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except PermissionError as error:
        raise PermissionError(f"{name} may not be read") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{name} can't be read: {getattr(error, 'strerror', None) or error}") from error
    found = list(_split(data.removeprefix(_MARK)))
    if not found:
        raise UsageError(f"{name} is empty: a JSON object is expected, or one a line")
    return found


def _split(data: bytes) -> Iterator[Message]:
    lines = [Message(n, text.removeprefix(_MARK)) for n, text in enumerate(data.split(b"\n"), 1)]
    lines = [message for message in lines if message.text.strip()]
    if len(lines) > 1 and _is_one_object(data, [m.text for m in lines]):
        yield Message(lines[0].line, b"\n".join(data.split(b"\n")[lines[0].line - 1 :]))
        return
    yield from lines


def _is_one_object(data: bytes, lines: list[bytes]) -> bool:
    """Whether the whole is meant as one object; where it is broken, by how it begins."""
    if is_json(data):
        return True
    begins = lines[0].strip()
    return begins.startswith(b"{") and not begins.endswith(b"}") and not any(_is_message(x) for x in lines)


def _is_message(line: bytes) -> bool:
    return line.strip().startswith(b"{") and b'"task_id"' in line and is_json(line)
