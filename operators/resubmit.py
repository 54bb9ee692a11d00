"""A person sends a task in Error back to Pending, with its record corrected if need be.

Where a service no longer remembers what became of a call, its step can't go on by itself. A person can look there, and
say on evidence that the call had no effect: then the step gets a new key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from domain.faults import Conflict, NotFound, UsageError
from domain.messages import Json
from domain.states import TaskState
from operators.amend import Change, amended
from operators.calls import check_no_call_on_its_way, has_unknown_outcome
from runtime.wiring import Stores
from store.orders import Amendment
from store.reads import Reads, TaskPage
from store.rows import Step


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

    moved, after = await stores.store.requests.resubmit(
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
    check_no_call_on_its_way(page, step)
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
