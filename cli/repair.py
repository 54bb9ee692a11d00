"""`repair`: a person skips the undo of one step, or says that it was done by hand. Needs the state store only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from cli.app import By, Code, DryRun, OneId, Output, Reason, Timeout, Wait, run, said
from cli.environment import reading, requester, settings
from cli.follow import UNDO_RESTS, follow
from cli.output import Format, instant, tell, tell_json
from cli.undo_log import WORDS, by_whom, left_to_undo, undo_json
from domain.faults import Conflict, NotFound, UsageError
from domain.states import TaskState, UndoState
from domain.text import clean
from runtime.settings import Settings
from runtime.wiring import open_state_store, process_name
from store.reads import Reads, TaskPage
from store.rows import Compensation, Step
from store.state_store import StateStore

_BEING_UNDONE = (TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED)

Verdict = Literal["possible", "accepted", "already"]
StepName = Annotated[str, typer.Argument(metavar="STEP", help="step whose undo it is about")]
Skip = Annotated[bool, typer.Option("--skip", help="leave the step undone; the task ends CompensationFailed")]
ByHand = Annotated[bool, typer.Option("--done-by-hand", help="nothing of the step is left; for good")]
Evidence = Annotated[str, typer.Option(help="what shows that nothing is left; with --done-by-hand")]


@dataclass(frozen=True)
class Repair:
    """What a person says of one entry of a task's compensation log."""

    task_id: str
    step: str
    target: UndoState
    requester: str
    reason: str
    evidence: str | None = None


def repair(
    task_id: OneId,
    step: StepName,
    reason: Reason,
    skip: Skip = False,
    done_by_hand: ByHand = False,
    evidence: Evidence = "",
    by: By = "",
    wait: Wait = False,
    timeout: Timeout = 300,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> Code:
    """Skip the undo of one step, or say that it was done by hand; what is left is undone then.

    To try an undo again, ask for it again: `compensate`.
    """
    if skip is done_by_hand:
        raise UsageError("give either --skip or --done-by-hand")
    if skip and evidence:
        raise UsageError("--evidence goes with --done-by-hand")
    target = UndoState.CLOSED_BY_HAND if done_by_hand else UndoState.SKIPPED
    shown = said("--evidence", evidence) if done_by_hand else None
    asked = Repair(task_id, clean(step), target, requester(by), said("--reason", reason), shown)
    return run(_repair(asked, timeout if wait else None, dry_run, output))


async def make(store: StateStore, reads: Reads, asked: Repair) -> Verdict:
    """Make a repair: `accepted`, or `already` if that is what the entry says.

    Raises:
        NotFound: There is no such task, or its undo log has no such step.
        Conflict: It can't be repaired so, or not now; says why, and what to do.
    """
    verdict = verdict_on(await reads.page(asked.task_id), asked)
    if verdict == "possible":
        moved, _ = await store.repair_undo(
            asked.task_id,
            asked.step,
            asked.target,
            requester=asked.requester,
            reason=asked.reason,
            evidence=asked.evidence,
        )
        verdict = "accepted" if moved else verdict_on(await reads.page(asked.task_id), asked)
    if verdict == "possible":
        raise Conflict(f"task {asked.task_id} was moved by somebody else meanwhile: look at it and ask again")
    await _finish(store, await reads.page(asked.task_id))
    return verdict


def verdict_on(page: TaskPage, asked: Repair) -> Verdict:
    """`possible`, or `already` if that is what the entry says; raises as `make`."""
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
        raise Conflict(f"{where} is {WORDS[entry.state]}: {held}; ask again then")
    if asked.target is UndoState.CLOSED_BY_HAND:
        check_that_no_call_is_on_its_way(page, next(s for s in page.steps if s.name == entry.step))
    return "possible"


def check_that_no_call_is_on_its_way(page: TaskPage, step: Step) -> None:
    """What a person has seen of a step holds only once no call of it can arrive any more.

    Raises:
        Conflict: One can; says until when.
    """
    if step.completed_at is not None or step.complete_by is None:
        return
    until = step.complete_by + page.late_call_margin
    if until > page.now:
        raise Conflict(
            f"a call of step {step.name} of task {page.task.task_id} may be on its way until {instant(until)}:"
            " look at the service again then"
        )


def _entry(page: TaskPage, step: str) -> Compensation:
    found = next((e for e in page.undo_log if e.step == step), None)
    if found is not None:
        return found
    task_id, names = page.task.task_id, [s.name for s in page.steps]
    if step not in names:
        raise NotFound(f"task {task_id} has no step {step!r} (there are: {', '.join(names)})")
    logged = ", ".join(e.step for e in reversed(page.undo_log)) or "nothing"
    raise NotFound(f"task {task_id} has nothing to undo of step {step}: its undo log has {logged}")


async def _finish(store: StateStore, page: TaskPage) -> None:
    """Nothing is left to undo: end the task here, as an attempt would. No Temporal and no Agent is needed.

    Whoever dies in between has left a claim that expires; if a worker was faster, it ends the task.
    """
    task = page.task
    if task.state is TaskState.COMPENSATING and task.locked_by is None and not left_to_undo(page.undo_log):
        definition = [(task.definition, task.version)]
        for claim in await store.claim(process_name("cli"), definition, 1, [task.task_id]):
            await store.undo_advance(claim.hold("cli"))


async def _repair(asked: Repair, timeout: float | None, dry_run: bool, output: Format) -> Code:
    async with _opened(settings()) as (store, reads):
        verdict = verdict_on(await reads.page(asked.task_id), asked) if dry_run else await make(store, reads, asked)
        page = await reads.page(asked.task_id)
        if output is Format.TEXT:
            tell(_text(page, asked, verdict))
        code = Code.OK
        if timeout is not None and not dry_run:
            ending = await follow(reads, [asked.task_id], timeout, output, good=TaskState.COMPENSATED, rest=UNDO_RESTS)
            code, page = ending.code, await reads.page(asked.task_id)
    if output is Format.JSON:
        left = left_to_undo(page.undo_log)
        said_of = {"task_id": asked.task_id, "step": asked.step, "verdict": verdict, "as": asked.target}
        tell_json(said_of | {"state": page.task.state, "left": left, "undo_log": undo_json(page.undo_log)})
    return code


def _text(page: TaskPage, asked: Repair, verdict: Verdict) -> str:
    left = ", ".join(left_to_undo(page.undo_log)) or "nothing"
    will = "would be (nothing was written)" if verdict == "possible" else "is"
    already = " already" if verdict == "already" else ""
    return f"{asked.task_id}: step {asked.step} {will} {WORDS[asked.target]}{already}; left to undo: {left}"


@asynccontextmanager
async def _opened(found: Settings) -> AsyncIterator[tuple[StateStore, Reads]]:
    async with open_state_store(found, size=2) as store, reading(found) as reads:
        yield store, reads
