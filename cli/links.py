"""Addresses of runs in the Temporal UI."""

from __future__ import annotations

import os
from urllib.parse import quote


def namespace() -> str:
    """The Temporal namespace that links lead to."""
    if named := os.environ.get("TEMPORAL_NAMESPACE"):  # it comes before whatever a profile says
        return named
    from runtime.temporal import connection  # noqa: PLC0415 (the SDK takes half a second, and only a profile needs it)

    return connection().get("namespace") or "default"


def ui_link(ui_url: str, namespace: str, workflow_id: str, run_id: str | None = None) -> str:
    """Address of a run."""
    base = f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{base}/{run_id}/history" if run_id else base
