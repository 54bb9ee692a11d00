"""Addresses of runs in the Temporal UI."""

from __future__ import annotations

import os
from urllib.parse import quote

from domain.ids import attempt_id
from store.rows import Task


def attempt_link(ui_url: str, task: Task, run_id: str | None = None) -> str | None:
    """Address of a task's current or last attempt; None if it had none. `run_id`: where its row has none yet."""
    if not task.epoch:
        return None
    attempt = attempt_id(task.definition, task.task_id, task.epoch)
    return ui_link(ui_url, _namespace(), attempt, task.run_id or run_id)


def ui_link(ui_url: str, namespace: str, workflow_id: str, run_id: str | None = None) -> str:
    """Address of a run."""
    base = f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{base}/{run_id}/history" if run_id else base


def _namespace() -> str:
    if named := os.environ.get("TEMPORAL_NAMESPACE"):  # it comes before whatever a profile says
        return named
    from runtime.temporal import connection  # noqa: PLC0415 (the SDK takes half a second, and only a profile needs it)

    return connection().get("namespace") or "default"
