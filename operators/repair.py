"""A person skips the undo of one step, or says that it was done by hand. Needs the state store only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from domain.faults import Conflict, NotFound
from domain.states import TaskState, UndoState
from operators.calls import check_no_call_on_its_way
from operators.times import instant
from operators.undo_log import OUTCOMES, by_whom, left_to_undo
from runtime.wiring import process_name
from store.reads import Reads, TaskPage
from store.rows import Compensation
from store.state_store import StateStore

_BEING_UNDONE = (TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED)

Possible = Literal["possible", "already"]
Made = Literal["accepted", "already"]


@dataclass(frozen=True)
class Repair:
    """What a person says of one entry of a task's compensation log. `target`: skipped, or closed by hand."""

    task_id: str
    step: str
    target: UndoState
    requester: str
    reason: str
    evidence: str | None = None


def prepare(page: TaskPage, asked: Repair) -> Possible:
    """`possible`, or `already` if that is what the entry says; nothing is written.

    Raises:
        NotFound: The undo log has no such step.
        Conflict: It can't be repaired so, or not now; says why, and what to do.
    """
    task, entry = page.task, _entry(page, asked.step)
    where = f"step {entry.step} of task {task.task_id}"
    if entry.state is asked.target:
        return "already"
    if entry.state is UndoState.UNDONE:
        raise Conflict(f"{where} is undone since {instant(entry.undone_at)}: there is nothing to repair")
    if entry.state is UndoState.CLOSED_BY_HAND:
        raise Conflict(f"{where} was closed by hand {by_whom(entry)}; that is final")
    if task.state not in _BEING_UNDONE:
        ask = f"`python starter.py compensate {task.task_id} --reason TEXT`"
        raise Conflict(f"task {task.task_id} is {task.state}, so {where} is not to be undone: {ask} asks for that")
    if task.locked_by is not None:
        held = f"{task.locked_by} holds the task until {instant(task.complete_by)}, or a sweep after that"
        raise Conflict(f"{where} is {OUTCOMES[entry.state]}: {held}; ask again then")
    if asked.target is UndoState.CLOSED_BY_HAND:
        check_no_call_on_its_way(page, next(s for s in page.steps if s.name == entry.step))
    return "possible"


async def carry_out(store: StateStore, reads: Reads, asked: Repair) -> Made:
    """Make a repair: `accepted`, or `already` if that is what the entry says. Ends the task if nothing is left to undo.

    Raises:
        NotFound: There is no such task, or its undo log has no such step.
        Conflict: It can't be repaired so, or not now; says why, and what to do.
    """
    made: Made = "already"
    if prepare(await reads.page(asked.task_id), asked) == "possible":
        moved, _ = await store.requests.repair_undo(
            asked.task_id,
            asked.step,
            asked.target,
            requester=asked.requester,
            reason=asked.reason,
            evidence=asked.evidence,
        )
        if moved:
            made = "accepted"
        elif prepare(await reads.page(asked.task_id), asked) == "possible":
            raise Conflict(f"task {asked.task_id} was moved by somebody else meanwhile: look at it and ask again")
    await _end_if_undone(store, await reads.page(asked.task_id), asked.requester)
    return made


def _entry(page: TaskPage, step: str) -> Compensation:
    found = next((e for e in page.undo_log if e.step == step), None)
    if found is not None:
        return found
    task_id, names = page.task.task_id, [s.name for s in page.steps]
    if step not in names:
        raise NotFound(f"task {task_id} has no step {step!r} (there are: {', '.join(names)})")
    logged = ", ".join(e.step for e in reversed(page.undo_log)) or "nothing"
    raise NotFound(f"task {task_id} has nothing to undo of step {step}: its undo log has {logged}")


async def _end_if_undone(store: StateStore, page: TaskPage, requester: str) -> None:
    """Where nothing is left to undo, end the task here, as an attempt would. No Temporal and no Agent is needed.

    Whoever dies in between has left a claim that expires; if a worker was faster, it ends the task.
    """
    task, channel = page.task, requester.partition(":")[0]
    if task.state is TaskState.COMPENSATING and task.locked_by is None and not left_to_undo(page.undo_log):
        definition = [(task.definition, task.version)]
        for claim in await store.claims.claim(process_name(channel), definition, 1, [task.task_id]):
            await store.undo.advance(claim.hold(channel))
