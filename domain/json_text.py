"""JSON as others send it: read once, strictly, so that what was read can be stored, and reads the same everywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from domain.text import clean_json

MOST_DEPTH = 64
"""Levels of objects and lists, one in another."""

_INTEGERS = range(-(2**63), 2**64)
"""What services and databases hold in 64 bits, signed or not."""


class BadJson(ValueError):
    """The text can't be taken. `problems`: one text for each thing that is wrong, with the field that it is in."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def read_json(text: str | bytes, *, cleans: bool = False) -> Any:
    """The value that a JSON text says, and says in one way only.

    `cleans`: NUL and half surrogate pairs are taken out, as who sent the text can't be asked for a better one.

    Raises:
        BadJson: It is no JSON in UTF-8, or holds what can't be kept: a number without bound, one that is no number, a
            key that is given twice, NUL, half a surrogate pair, or too many levels.
    """
    try:
        value = _DECODER.decode(text.decode() if isinstance(text, bytes) else text)
        value = clean_json(value) if cleans else value
    except UnicodeDecodeError as error:
        raise BadJson([f"not UTF-8: byte 0x{error.object[error.start]:02x} at column {error.start + 1}"]) from error
    except json.JSONDecodeError as error:
        raise BadJson([f"Invalid JSON: {error.msg} at line {error.lineno} column {error.colno}"]) from error
    except RecursionError as error:
        raise BadJson([_TOO_DEEP]) from error
    if problems := [f"{where}: {what}" if where else what for where, what in _problems(value, "", 0)]:
        raise BadJson(problems)
    return value


def dumped(model: BaseModel) -> dict[str, Any]:
    """A model as a JSON object that can be kept, its texts cleaned.

    Raises:
        BadJson: A number in it is none, or has no bound; naming the field.
    """
    read_json(json.dumps(model.model_dump(), default=str, skipkeys=True), cleans=True)
    found: dict[str, Any] = clean_json(model.model_dump(mode="json"))
    return found


def is_json(text: str | bytes) -> bool:
    """Whether it is JSON at all, be it taken or not."""
    try:
        _DECODER.decode(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True)
class _Unfit:
    """Stands where something stood that is not taken."""

    problem: str


_TOO_DEEP = f"nested deeper than {MOST_DEPTH} levels"


def _integer(digits: str) -> int | _Unfit:
    if len(digits) <= 20 and int(digits) in _INTEGERS:
        return int(digits)
    return _Unfit(f"an integer of more than 64 bits, {_short(digits)}")


def _number(digits: str) -> float | _Unfit:
    value = float(digits)
    return value if math.isfinite(value) else _Unfit(f"a number too large to be kept, {_short(digits)}")


def _constant(name: str) -> _Unfit:
    return _Unfit(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        found[key] = _Unfit("given twice") if key in found else value
    return found


def _short(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:20]}… ({len(text)} characters)"


_DECODER = json.JSONDecoder(
    parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_object
)


def _problems(value: Any, where: str, depth: int) -> Iterator[tuple[str, str]]:
    """Each place with something that is not taken, and what it is."""
    match value:
        case _Unfit(problem):
            yield where, problem
        case str() if not _is_storable(value):
            yield where, "a text with NUL or half a surrogate pair, which can't be stored"
        case dict() | list() if depth == MOST_DEPTH:
            yield f"{where[:60]}…", _TOO_DEEP
        case dict():
            for key, item in value.items():
                inside = _inside(where, _short(key).encode("ascii", "backslashreplace").decode())
                if not _is_storable(key):
                    yield inside, "a key with NUL or half a surrogate pair, which can't be stored"
                yield from _problems(item, inside, depth + 1)
        case list():
            for number, item in enumerate(value):
                yield from _problems(item, _inside(where, str(number)), depth + 1)


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
