"""Reading a request for undo out of whatever a signal carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

from domain.messages import UndoRequest
from domain.text import clean

NO_REASON = "no reason given"


def read_request(task_id: str, args: Sequence[RawValue]) -> UndoRequest:
    """The request that a `compensate` signal stands for: a text is the reason; an object may name both.

    Nothing that is sent can fail the run: what can't be read is quoted as the reason.
    """
    value = _decode(args[0]) if args else None
    fields = value if isinstance(value, dict) else {"reason": value}
    reason, requester = fields.get("reason"), fields.get("requester")
    return UndoRequest(
        task_id=task_id,
        requester=(_short(requester) if isinstance(requester, str) else "") or "signal",
        reason=_reason(reason, value),
    )


def _decode(raw: RawValue) -> Any:
    try:
        return workflow.payload_converter().from_payload(raw.payload)
    except Exception as error:
        return f"(unreadable input: {type(error).__name__})"


def _reason(reason: Any, value: Any) -> str:
    if isinstance(reason, str):
        return _short(reason) or NO_REASON
    return NO_REASON if value in (None, {}, "") else _short(f"(unreadable input: {value!r})")


def _short(text: str) -> str:
    return clean(text).strip()[:500]
