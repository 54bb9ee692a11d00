"""The tables as SQLModel classes, made of their rows: for reports, notebooks and tools of your own.

The migrations say what a table is, in SQL: types, keys, defaults, constraints, indexes. `rows.py` says which of its
columns a program reads, and a test holds these to the migrations. Our own commands and the audit read by plain SQL.
"""

from __future__ import annotations

import types
from datetime import datetime
from typing import Any, Union, get_args, get_origin

from sqlalchemy import ARRAY, Boolean, Column, DateTime, Float, Integer, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from store import rows

_TYPES: dict[Any, Any] = {
    bool: Boolean,
    int: Integer,
    float: Float,
    datetime: DateTime(timezone=True),
    dict: JSONB,
    list: ARRAY(Text),
}
"""Column types by what a field holds; any other is text."""


def _table(row: type[rows.Row], *key: str) -> Any:
    """A table class whose columns are the fields of `row`; `key`: the columns of its primary key."""
    columns = {
        name: Field(sa_column=Column(_TYPES.get(_held(field.annotation), Text), primary_key=name in key))
        for name, field in row.model_fields.items()
    }
    about = {"__module__": __name__, "__tablename__": row.table, "__annotations__": dict.fromkeys(columns, Any)}
    return types.new_class(row.__name__, (SQLModel,), {"table": True}, lambda body: body.update(about | columns))


def _held(annotation: Any) -> Any:
    """What a field holds, where it holds anything: `dict` of `dict[str, Any] | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return get_origin(annotation) or annotation


Task = _table(rows.Task, "task_id")
Step = _table(rows.Step, "task_id", "name")
Compensation = _table(rows.Compensation, "task_id", "seq")
Event = _table(rows.Event, "task_id", "number")
Alert = _table(rows.Alert, "id")
DeadLetter = _table(rows.DeadLetter, "id")
DefinitionRow = _table(rows.DefinitionRow, "name", "version")
Presence = _table(rows.Presence, "name", "version", "worker")
ServiceRow = _table(rows.ServiceRow, "name")
ServiceEvent = _table(rows.ServiceEvent, "id")
Inbox = _table(rows.Inbox, "key", "response_id")
Sweep = _table(rows.Sweep, "id")
BusinessRecord = _table(rows.BusinessRecord, "task_id")
