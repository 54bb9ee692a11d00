"""Identifiers: what they look like, and how they are derived from one another."""

from __future__ import annotations

import re

TASK_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""The application's own id of a task."""
NEW_TASK_ID = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,127}")
"""The id of a task that is taken in: one that begins with a hyphen would read as an option of a command."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
TASK_QUEUE = "scheduler"
"""Of requests for undo, which every worker of the Scheduler takes, whatever definitions it has; and of attempts that
somebody starts by hand, which are refused."""
SENDER = "sender"
"""Memo of a `CompensationRequest`: who sent the signal, if another passes it on."""


def attempt_id(definition: str, task_id: str, epoch: int) -> str:
    """Workflow id of one attempt, and what `locked_by` holds while it runs."""
    return f"{definition}/{task_id}/{epoch}"


def undo_request_id(definition: str, task_id: str) -> str:
    """Workflow id of the `CompensationRequest` of a task."""
    return f"{definition}/{task_id}/undo"


def undo_request_of(attempt: str) -> str:
    """Workflow id of the `CompensationRequest` of an attempt's task."""
    name, task_id, _ = attempt.split("/")
    return undo_request_id(name, task_id)


def parse_undo_request_id(workflow_id: str) -> tuple[str, str] | None:
    """`(definition, task_id)` of a `CompensationRequest` id, or None if it is not one."""
    parts = workflow_id.split("/")
    if len(parts) != 3 or parts[2] != "undo" or not TASK_ID.fullmatch(parts[1]):
        return None
    return parts[0], parts[1]


def idempotency_key(task_id: str, step: str, generation: int) -> str:
    """Key that every retry of every attempt of a step sends; only a resubmit raises the generation."""
    return f"{task_id}:{step}:{generation}"


def idempotency_keys(task_id: str, step: str, generation: int) -> list[str]:
    """Keys of all generations up to the given one, oldest first: what an undo names."""
    return [idempotency_key(task_id, step, g) for g in range(generation + 1)]


def undo_key(task_id: str, step: str, generation: int) -> str:
    """Key that every retry of every attempt of an undo sends; where it is to be done anew, of the next generation."""
    return f"{task_id}:{step}:undo-{generation}"


def actor(channel: str, name: str) -> str:
    """Who did it: the channel that a person came by, and the name that he gave; so nobody passes for another part."""
    return f"{channel}:{name or 'unnamed'}"
