"""`--set path=value`: changes to a business record, checked by its model before anything is written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from domain.definition import Definition
from domain.faults import UsageError
from domain.json_text import BadJson, read_json
from domain.messages import Json
from domain.redaction import HIDDEN, is_secret
from domain.text import clean

_NOTHING = object()


@dataclass(frozen=True)
class Change:
    """One field's value before (None: it was not there) and after."""

    path: str
    before: Any
    after: Any

    def audited(self) -> Json:
        """As the audit trail holds it: without the values of secrets."""
        if is_secret(self.path):
            return {"from": HIDDEN, "to": HIDDEN}
        return {"from": self.before, "to": self.after}


def amended(record: Json, settings: Sequence[str], definition: Definition) -> tuple[Json, list[Change]]:
    """The record with these `path=value` settings made, as its model writes it, and what changes.

    Raises:
        UsageError: A setting can't be read, leads nowhere, or makes a record that its model refuses.
    """
    new = deepcopy(record)
    paths = [_set(new, setting) for setting in settings]
    try:
        checked = definition.checked(new)
    except ValidationError as error:
        raise UsageError("; ".join(_problem(e) for e in error.errors(include_url=False))) from error
    for path in paths:
        if _at(checked, path) is _NOTHING:
            raise UsageError(f"--set {path}: a record of this definition has no such field")
    before = {path: _at(record, path) for path in paths}
    return checked, [Change(p, None if b is _NOTHING else b, _at(checked, p)) for p, b in before.items()]


def _set(record: Json, setting: str) -> str:
    """Make one setting; returns its path."""
    path, equals, text = (clean(part) for part in setting.partition("="))
    *above, last = path.split(".")
    if not equals or not all((*above, last)):
        raise UsageError(f'--set {clean(setting)!r} is not of the form path=value, as in address.line1="Rue 1"')
    holder = _at(record, ".".join(above)) if above else record
    match holder:
        case dict():
            holder[last] = _value(text)
        case list() if last.isdecimal() and int(last) < len(holder):
            holder[int(last)] = _value(text)
        case _:
            raise UsageError(f"--set {path}: the record has nothing of that kind at {'.'.join(above) or path}")
    return path


def _value(text: str) -> Any:
    try:
        return read_json(text)
    except BadJson:
        return text


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        match value:
            case dict() if part in value:
                value = value[part]
            case list() if part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            case _:
                return _NOTHING
    return value


def _problem(error: Any) -> str:
    value = json.dumps(error["input"], default=str, ensure_ascii=False)
    return f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}, not {value[:80]}"
