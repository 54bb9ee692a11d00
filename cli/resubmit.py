"""`resubmit`: a person sends a task in Error back to Pending, with its record corrected if need be.

Where a service no longer remembers what became of a call, its step can't go on by itself. A person can look there, and
say on evidence that the call had no effect: then the step gets a new key.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.amend import Change, amended
from cli.app import By, Code, DryRun, OneId, Output, Reason, Timeout, Wait, run, said
from cli.environment import reading, requester, settings
from cli.follow import follow
from cli.outlook import has_unknown_outcome
from cli.output import Format, compact, tell, tell_json
from cli.repair import check_that_no_call_is_on_its_way
from cli.screen import draw, table
from domain.faults import Conflict, NotFound, UsageError
from domain.messages import Json
from domain.states import SETTLED, TaskState
from domain.text import clean
from runtime.wiring import Stores, open_stores
from store.orders import Amendment
from store.reads import Reads, TaskPage
from store.rows import Step

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


@dataclass(frozen=True)
class Resubmission:
    """What a person asks of a task in Error.

    `changes`: of its record, as `--set` gives them. `no_effect`: the step that the person speaks for, on `evidence`.
    """

    task_id: str
    requester: str
    reason: str
    changes: Sequence[str] = ()
    no_effect: str | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class Plan:
    """What a resubmission changes beside the task's state, as things stood when it was prepared.

    `generation`: of the key of the step that the person speaks for, before it is raised by one.
    """

    amendment: Amendment | None
    changes: Sequence[Change]
    generation: int | None

    def audited(self) -> Json:
        """The changes to the record, as the audit trail holds them."""
        return {c.path: c.audited() for c in self.changes}


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
) -> Code:
    """Put a task that is in Error back to Pending, with a fresh budget.

    --set corrects its record first. --no-effect says what no call can find out any more, on evidence.
    """
    if evidence and no_effect is None:
        raise UsageError("--evidence goes with --no-effect")
    if no_effect is not None and reason == _NO_REASON:
        raise UsageError("--no-effect needs a --reason")
    shown = said("--evidence", evidence) if no_effect is not None else None
    step = None if no_effect is None else clean(no_effect)
    asked = Resubmission(task_id, requester(by), said("--reason", reason), changes or [], step, shown)
    return run(_resubmit(asked, timeout if wait else None, dry_run, output))


async def prepare(stores: Stores, reads: Reads, asked: Resubmission) -> Plan:
    """Look at what a resubmission would change; nothing is written.

    Raises:
        NotFound: There is no such task, no such step, or no business record.
        Conflict: It can't be resubmitted so, or not now; says why.
        UsageError: A change can't be read, or makes a record that its model refuses.
    """
    page = await reads.page(asked.task_id)
    if page.task.state is not TaskState.ERROR:
        raise Conflict(f"task {asked.task_id} is {page.task.state}: only a task in Error can be resubmitted")
    generation = None if asked.no_effect is None else _spoken_for(page, asked.no_effect).key_generation
    if not asked.changes:
        return Plan(None, [], generation)
    amendment, changes = await _amendment(stores, page, asked.changes)
    return Plan(amendment, changes, generation)


async def carry_out(stores: Stores, reads: Reads, asked: Resubmission, plan: Plan) -> None:
    """Resubmit, and amend the record while nobody else can move the task.

    Whoever dies in between has left a task in Error, with a record that says what was meant.

    Raises:
        Conflict: Somebody else was faster.
    """

    async def amend() -> None:
        if plan.amendment is not None and not await stores.orders.amend(plan.amendment):
            raise Conflict(
                f"task {asked.task_id}: somebody else has amended its record meanwhile, and nothing was changed:"
                " look at it with --dry-run, and ask again"
            )

    moved, after = await stores.store.resubmit(
        asked.task_id,
        requester=asked.requester,
        reason=asked.reason,
        changes=plan.audited(),
        amend=amend if plan.amendment else None,
        no_effect=asked.no_effect,
        evidence=asked.evidence,
    )
    if not moved:
        state = after.state if after else "gone"
        if state is TaskState.ERROR:
            await prepare(stores, reads, asked)  # says why it can't be resubmitted so
        raise Conflict(f"task {asked.task_id} is {state}: somebody else moved it meanwhile; look at it, and ask again")


def _spoken_for(page: TaskPage, name: str) -> Step:
    """The step whose calls of unknown outcome a person speaks for."""
    step = next((s for s in page.steps if s.name == name), None)
    if step is None:
        names = ", ".join(s.name for s in page.steps)
        raise NotFound(f"task {page.task.task_id} has no step {name!r} (there are: {names})")
    if not has_unknown_outcome(step):
        known = f"step {name} of task {page.task.task_id} is {step.state}, and no call of it has an unknown outcome"
        raise Conflict(f"{known}: resubmit it without --no-effect")
    check_that_no_call_is_on_its_way(page, step)
    return step


async def _amendment(stores: Stores, page: TaskPage, changes: Sequence[str]) -> tuple[Amendment, list[Change]]:
    """The task's record with the changes made, checked."""
    task = page.task
    definition = stores.registry.find(task.definition, task.version)
    if definition is None:
        raise UsageError(f"this release has no {task.definition} v{task.version}, so --set can't be checked")
    found = (await stores.orders.load([task.task_id])).get(task.task_id)
    if found is None or found.record is None:
        raise NotFound(f"task {task.task_id} has no business record")
    record, made = amended(found.record, changes, definition)
    return Amendment(task.task_id, record, found.amendments), made


async def _resubmit(asked: Resubmission, timeout: float | None, dry_run: bool, output: Format) -> Code:
    found = settings()
    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(found, orders_may_be_away=not asked.changes))
        reads = await stack.enter_async_context(reading(found))
        plan = await prepare(stores, reads, asked)
        if not dry_run:
            await carry_out(stores, reads, asked, plan)
        if output is Format.TEXT:
            _print(asked, plan, dry_run)
        code, state = Code.OK, TaskState.ERROR if dry_run else TaskState.PENDING
        if timeout is not None and not dry_run:
            ending = await follow(reads, [asked.task_id], timeout, output, good=TaskState.PROCESSED, rest=SETTLED)
            code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        told = {"task_id": asked.task_id, "resubmitted": not dry_run, "state": state, "changes": plan.audited()}
        tell_json(told | {"no_effect": _no_effect_json(asked, plan)})
    return code


def _no_effect_json(asked: Resubmission, plan: Plan) -> Json | None:
    if plan.generation is None:
        return None
    generations = {"from": plan.generation, "to": plan.generation + 1}
    return {"step": asked.no_effect, "evidence": asked.evidence, "key_generation": generations}


def _print(asked: Resubmission, plan: Plan, dry_run: bool) -> None:
    done = "would be resubmitted (nothing was written)" if dry_run else "resubmitted: it is Pending"
    tell(f"{asked.task_id}: {done}")
    if plan.generation is not None:
        tell(f"step {asked.no_effect}: no effect, says {asked.requester}; key generation {plan.generation + 1}")
    if plan.changes:
        rows = [[c.path, compact(c.audited()["from"]), compact(c.audited()["to"])] for c in plan.changes]
        draw(table(["field", "before", "after"], rows))
