"""`resubmit`: send a task in Error back to Pending, with its record corrected if need be."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.app import By, DryRun, ExitCode, OneId, Output, Reason, Timeout, Wait, required_text, run
from cli.environment import find_settings, reading, requester
from cli.output import Format, compact, print_json, print_line
from cli.screen import print_rich, table
from cli.wait import follow
from domain.faults import UsageError
from domain.messages import Json
from domain.states import TaskState
from domain.text import clean
from operators.resubmit import Plan, Resubmission, carry_out, prepare
from runtime.wiring import open_stores

_NO_REASON = "no reason given"

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help='correct a field of the record: address.line1="Rue 1"'),
]
NoEffect = Annotated[
    str | None,
    typer.Option(metavar="STEP", help="its calls of unknown outcome had no effect, and won't have any: a new key"),
]
Evidence = Annotated[str, typer.Option(help="what shows that they had none; with --no-effect")]


def resubmit(
    task_id: OneId,
    reason: Reason = _NO_REASON,
    by: By = "",
    changes: Changes = None,
    no_effect: NoEffect = None,
    evidence: Evidence = "",
    wait: Wait = False,
    timeout: Timeout = 300,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Put a task that is in Error back to Pending, with a fresh budget.

    --set corrects its record first. --no-effect says what no call can find out any more, on evidence.
    """
    if evidence and no_effect is None:
        raise UsageError("--evidence goes with --no-effect")
    if no_effect is not None and reason == _NO_REASON:
        raise UsageError("--no-effect needs a --reason")
    shown = required_text("--evidence", evidence) if no_effect is not None else None
    step = None if no_effect is None else clean(no_effect)
    asked = Resubmission(task_id, requester(by), required_text("--reason", reason), changes or [], step, shown)
    return run(_resubmit(asked, timeout if wait else None, dry_run, output))


async def _resubmit(asked: Resubmission, timeout: float | None, dry_run: bool, output: Format) -> ExitCode:
    settings = find_settings()
    async with open_stores(settings, orders_may_be_away=not asked.changes) as stores, reading(settings) as reads:
        plan = await prepare(stores, reads, asked)
        if not dry_run:
            await carry_out(stores, reads, asked, plan)
        if output is Format.TEXT:
            _print(asked, plan, dry_run)
        code, state = ExitCode.OK, TaskState.ERROR if dry_run else TaskState.PENDING
        if timeout is not None and not dry_run:
            ending = await follow(reads, [asked.task_id], timeout, output)
            code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        told = {"task_id": asked.task_id, "resubmitted": not dry_run, "state": state, "changes": plan.audited()}
        print_json(told | {"no_effect": _no_effect_json(asked, plan)})
    return code


def _no_effect_json(asked: Resubmission, plan: Plan) -> Json | None:
    if plan.generation is None:
        return None
    generations = {"from": plan.generation, "to": plan.generation + 1}
    return {"step": asked.no_effect, "evidence": asked.evidence, "key_generation": generations}


def _print(asked: Resubmission, plan: Plan, dry_run: bool) -> None:
    done = "would be resubmitted (nothing was written)" if dry_run else "resubmitted: it is Pending"
    print_line(f"{asked.task_id}: {done}")
    if plan.generation is not None:
        print_line(f"step {asked.no_effect}: no effect, says {asked.requester}; key generation {plan.generation + 1}")
    if plan.changes:
        rows = [[c.path, compact(c.audited()["from"]), compact(c.audited()["to"])] for c in plan.changes]
        print_rich(table(["field", "before", "after"], rows))
