"""What people ask of a task, by command, signal or console: its undo, another try, the repair of its undo."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from uuid import uuid4

from domain.messages import Json
from domain.states import EventKind, TaskState, UndoState
from domain.undo_requests import UndoRequest, UndoVerdict
from store.database import BeforeCommit, Params
from store.snapshot import Snapshot
from store.tasks import Tasks


class Requests:
    """Requests of people, each carried out once, under guards of its own."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def undo(self, request: UndoRequest) -> UndoVerdict:
        """Ask for the undo of a task: one statement for every way of asking."""
        asked = request.model_dump(exclude={"heard"})
        return _verdict(request, *await self._write("request_undo", EventKind.UNDO_REQUESTED, asked))

    async def resubmit(
        self,
        task_id: str,
        *,
        requester: str,
        reason: str,
        changes: Json,
        amend: Callable[[], Awaitable[object]] | None = None,
        no_effect: str | None = None,
        evidence: str | None = None,
    ) -> tuple[bool, Snapshot | None]:
        """Error back to Pending, with counts reset and a fresh budget.

        Args:
            task_id: A task in Error. requester: who says so; reason: why.
            changes: What is corrected in its business record, for the audit trail.
            amend: Corrects the record, and changes nothing when it is awaited again. It is awaited before the COMMIT if
                the task moves: so nobody else moves it meanwhile, and it stays in Error if this raises.
            no_effect: A step whose calls of unknown outcome had no effect, as the person has seen: it gets a new key.
            evidence: What shows that.

        Returns:
            Whether it moved, and the task.
        """
        asked = {
            "task_id": task_id,
            "requester": requester,
            "reason": reason,
            "changes": json.dumps(changes),
            "no_effect": no_effect,
            "evidence": evidence,
        }
        before_commit = _if_it_moves(amend) if amend else None
        return await self._write("resubmit", EventKind.RESUBMITTED, asked, before_commit)

    async def repair_undo(
        self, task_id: str, step: str, target: UndoState, *, requester: str, reason: str, evidence: str | None = None
    ) -> tuple[bool, Snapshot | None]:
        """A person skips an entry of the compensation log, or closes it as undone by hand, with evidence.

        Args:
            task_id: A task that is Compensating, held by nobody, or CompensationFailed.
            step: Whose entry. target: `SKIPPED` or `CLOSED_BY_HAND`.
            requester: Who says so; reason: why; evidence: what shows that nothing is left, for `CLOSED_BY_HAND`.

        Returns:
            Whether it was accepted, and the task.
        """
        asked = {
            "task_id": task_id,
            "step": step,
            "target": target.value,
            "requester": requester,
            "reason": reason,
            "evidence": evidence,
        }
        return await self._write("repair_undo", EventKind.UNDO_REPAIRED, asked)

    async def _write(
        self, statement: str, kind: EventKind, asked: Params, before_commit: BeforeCommit | None = None
    ) -> tuple[bool, Snapshot | None]:
        """Write what somebody asks for, once. Returns whether it moved the task, and the task."""
        request = uuid4().hex
        params = {**asked, "request": request}
        changed, after = await self._tasks.write(statement, params, before_commit=before_commit)
        return changed or await self._tasks.was_written(asked["task_id"], kind, asked["requester"], request), after


def _verdict(request: UndoRequest, moved: bool, after: Snapshot | None) -> UndoVerdict:
    task_id = request.task_id
    if after is None or request.definition not in (None, after.definition):
        what = f"{request.definition or 'task'} {task_id}"
        return UndoVerdict(verdict="not_found", task_id=task_id, message=f"there is no {what}")
    verdict = partial(UndoVerdict, task_id=task_id, state=after.state)
    if moved:
        return verdict(verdict="accepted", message="undo is asked for")
    if after.state in (TaskState.COMPENSATING, TaskState.COMPENSATED):
        return verdict(verdict="already", message=f"task {task_id} is {after.state} already")
    if request.holder is not None and after.locked_by != request.holder:
        return verdict(verdict="not_holder", message=f"task {task_id} is no longer held by {request.holder}")
    pivot = next((s.name for s in after.steps if s.pivot), "?")
    message = f"task {task_id} is past its pivot (step {pivot}): it can only go forward"
    return verdict(verdict="past_pivot", message=message)


def _if_it_moves(act: Callable[[], Awaitable[object]]) -> BeforeCommit:
    """Do something before the COMMIT of a transition, if that has changed the task."""

    async def before_commit(counts: Sequence[int]) -> None:
        if counts[1]:
            await act()

    return before_commit
