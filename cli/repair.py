"""`repair`: skip the undo of one step, or say that it was done by hand. Needs the state store only."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.app import By, DryRun, ExitCode, OneId, Output, Reason, Timeout, Wait, required_text, run
from cli.environment import find_settings, reading, requester
from cli.output import Format, print_json, print_line
from cli.tasks import undo_json
from cli.wait import follow
from domain.faults import UsageError
from domain.states import TaskState, UndoState
from domain.text import clean
from operators.repair import Made, Possible, Repair, carry_out, prepare
from operators.undo_log import OUTCOMES, left_to_undo
from runtime.wiring import open_state_store
from store.reads import TaskPage

StepName = Annotated[str, typer.Argument(metavar="STEP", help="step whose undo it is about")]
Skip = Annotated[bool, typer.Option("--skip", help="leave the step undone; the task ends CompensationFailed")]
ByHand = Annotated[bool, typer.Option("--done-by-hand", help="nothing of the step is left; for good")]
Evidence = Annotated[str, typer.Option(help="what shows that nothing is left; with --done-by-hand")]


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
) -> ExitCode:
    """Skip the undo of one step, or say that it was done by hand; what is left is undone then.

    To try an undo again, ask for it again: `compensate`.
    """
    if skip is done_by_hand:
        raise UsageError("give either --skip or --done-by-hand")
    if skip and evidence:
        raise UsageError("--evidence goes with --done-by-hand")
    target = UndoState.CLOSED_BY_HAND if done_by_hand else UndoState.SKIPPED
    shown = required_text("--evidence", evidence) if done_by_hand else None
    asked = Repair(task_id, clean(step), target, requester(by), required_text("--reason", reason), shown)
    return run(_repair(asked, timeout if wait else None, dry_run, output))


async def _repair(asked: Repair, timeout: float | None, dry_run: bool, output: Format) -> ExitCode:
    settings = find_settings()
    async with open_state_store(settings, size=2) as store, reading(settings) as reads:
        verdict = prepare(await reads.page(asked.task_id), asked) if dry_run else await carry_out(store, reads, asked)
        page = await reads.page(asked.task_id)
        if output is Format.TEXT:
            print_line(_text(page, asked, verdict))
        code = ExitCode.OK
        if timeout is not None and not dry_run:
            ending = await follow(reads, [asked.task_id], timeout, output, good=TaskState.COMPENSATED)
            code, page = ending.code, await reads.page(asked.task_id)
    if output is Format.JSON:
        left = left_to_undo(page.undo_log)
        said_of = {"task_id": asked.task_id, "step": asked.step, "verdict": verdict, "as": asked.target}
        print_json(said_of | {"state": page.task.state, "left": left, "undo_log": undo_json(page.undo_log)})
    return code


def _text(page: TaskPage, asked: Repair, verdict: Possible | Made) -> str:
    left = ", ".join(left_to_undo(page.undo_log)) or "nothing"
    will = "would be (nothing was written)" if verdict == "possible" else "is"
    already = " already" if verdict == "already" else ""
    return f"{asked.task_id}: step {asked.step} {will} {OUTCOMES[asked.target]}{already}; left to undo: {left}"
