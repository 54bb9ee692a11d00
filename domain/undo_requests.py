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


class UndoReason(Message):
    """Who asks for an undo, and why.

    `holder` guards it: only if that attempt still holds the task. `sender`: who sent the signal by which it came, as
    Temporal knows it; `heard`: that signal, if this is to be asked.
    """

    requester: str
    reason: str
    holder: str | None = None
    sender: str = ""
    heard: SignalRef | None = None

    def of(self, definition: str, task_id: str) -> UndoRequest:
        """The request for the undo of that task."""
        return UndoRequest(task_id=task_id, definition=definition, **dict(self))


class UndoRequest(UndoReason):
    """Ask for the undo of a whole task. `definition` guards it: only if the task is of that definition."""

    task_id: str
    definition: str | None = None


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
