"""Alerts on what goes wrong again and again: one within the hour."""

from __future__ import annotations

from store.database import Params
from store.queries import query


def alert_once(kind: str, message: str, task_id: str | None = None, *, each_task: bool = False) -> tuple[str, Params]:
    """The statement that raises an alert, unless one of its kind was raised within the hour.

    `each_task`: unless one of its kind was raised on that task.
    """
    return query("alert_once"), {"kind": kind, "message": message, "task_id": task_id, "each_task": each_task}
