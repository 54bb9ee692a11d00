"""What asks for the undo of a whole task, and the answer."""

from __future__ import annotations

from typing import Literal

from domain.messages import Message
from domain.states import TaskState


class SignalRef(Message):
    """A signal that a run has got: which run, and number so many of those that ask for undo."""

    workflow_id: str
    run_id: str
    number: int


class UndoRequest(Message):
    """Ask for the undo of a whole task.

    `holder` guards it: only if that attempt still holds the task; `definition`: only if it is of that definition.
    `sender`: who sent the signal by which it came, as Temporal knows it; `heard`: that signal, if this is to be asked.
    """

    task_id: str
    requester: str
    reason: str
    holder: str | None = None
    definition: str | None = None
    sender: str = ""
    heard: SignalRef | None = None


class UndoVerdict(Message):
    """Answer to an undo request.

    Attributes:
        verdict: `accepted`; `already` (being undone, or undone); `past_pivot`; `not_found`; `not_holder`.
        state: State of the task afterwards; None if there is no such task.
    """

    verdict: Literal["accepted", "already", "past_pivot", "not_found", "not_holder"]
    task_id: str
    state: TaskState | None = None
    message: str = ""
