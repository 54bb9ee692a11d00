"""What Temporal's own record of runs can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from audit.task import AuditedTask
from domain.states import EventKind


def attempt_has_one_run(task: AuditedTask) -> Iterator[str]:
    """Fenced: each attempt was run once at most; a run that a person reset is not counted."""
    times = Counter(run.epoch for run in task.runs if not run.is_reset)
    yield from (f"attempt {epoch} has {n} runs" for epoch, n in sorted(times.items()) if n > 1)


def run_has_its_claim(task: AuditedTask) -> Iterator[str]:
    """Fenced: a claim is the only thing that starts a run."""
    claimed = {e.epoch for e in task.events if e.kind is EventKind.CLAIMED}
    for run in task.runs:
        if run.epoch not in claimed:
            yield f"{run.workflow_id} has run {run.run_id}, and attempt {run.epoch} was never claimed"
        elif not run.workflow_id.startswith(f"{task.row.definition}/"):
            yield f"{run.workflow_id} is a run of another definition than {task.row.definition}"


def bound_run_was_given_the_record(task: AuditedTask) -> Iterator[str]:
    """Fenced: a run that wrote anything has worked on the business record that was submitted, unless that was amended
    since. So whoever starts a run by hand can't have another sum charged."""
    bound = {e.detail["run_id"] for e in task.events if "run_id" in e.detail}
    amended = min((e.epoch for e in task.events if e.detail.get("changes")), default=task.row.epoch)
    for run in task.runs:
        wrong = run.digest not in (None, task.row.record_digest)
        if wrong and run.run_id in bound and run.epoch <= amended:
            yield f"{run.workflow_id} has worked on a business record that is not the one that was submitted"


def finished_run_finished_its_task(task: AuditedTask) -> Iterator[str]:
    """Every transition has exactly one event: a run that Temporal shows as completed has ended its task."""
    ends = (EventKind.PROCESSED, EventKind.COMPENSATED)
    finished = {e.epoch for e in task.events if e.kind in ends}
    for run in task.runs:
        if run.status == "COMPLETED" and run.epoch not in finished:
            yield f"{run.workflow_id} is completed, and no event says that attempt {run.epoch} ended the task"


def no_run_outlives_its_task(task: AuditedTask) -> Iterator[str]:
    """Nothing stuck: of a task that had rested for long when Temporal was asked no run was at work any more.

    A run whose task was taken from it may wait for the answer to its last call until the deadline of that.
    """
    if not task.row.state.is_settled or task.runs_asked_at is None:
        return
    ended_at = max([task.row.updated_at, *(s.complete_by for s in task.steps if s.complete_by)])
    if task.runs_asked_at - ended_at > task.tolerances.claim_delay:
        left = [run for run in task.runs if run.status == "RUNNING"]
        yield from (f"it is {task.row.state}, {run.workflow_id} still runs" for run in left)
