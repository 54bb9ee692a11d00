"""Invariants that Temporal's own record of runs bears witness to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from audit.task_record import Picture
from domain.states import EventKind


def attempt_has_one_run(picture: Picture) -> Iterator[str]:
    """Every (task, epoch) was run once at most; one that a person reset is not counted."""
    times = Counter(run.epoch for run in picture.runs or () if not run.is_reset)
    yield from (f"attempt {epoch} has {n} runs" for epoch, n in sorted(times.items()) if n > 1)


def run_has_its_claim(picture: Picture) -> Iterator[str]:
    """No run of an attempt that no claim made: a claim is the only thing that starts a run."""
    claimed = {e.epoch for e in picture.events if e.kind is EventKind.CLAIMED}
    for run in picture.runs or ():
        if run.epoch not in claimed:
            yield f"{run.workflow_id} has run {run.run_id}, and attempt {run.epoch} was never claimed"
        elif not run.workflow_id.startswith(f"{picture.task.definition}/"):
            yield f"{run.workflow_id} is a run of another definition than {picture.task.definition}"


def bound_run_was_given_the_record(picture: Picture) -> Iterator[str]:
    """A run that wrote anything has worked on the business record that was submitted, unless that was amended since:
    whoever starts a run by hand can't have another sum charged."""
    bound = {e.detail["run_id"] for e in picture.events if "run_id" in e.detail}
    amended = min((e.epoch for e in picture.events if e.detail.get("changes")), default=picture.task.epoch)
    for run in picture.runs or ():
        wrong = run.digest not in (None, picture.task.record_digest)
        if wrong and run.run_id in bound and run.epoch <= amended:
            yield f"{run.workflow_id} has worked on a business record that is not the one that was submitted"


def finished_run_finished_its_task(picture: Picture) -> Iterator[str]:
    """A run that Temporal shows as completed has ended its task; the status column is true."""
    ends = (EventKind.PROCESSED, EventKind.COMPENSATED)
    finished = {e.epoch for e in picture.events if e.kind in ends}
    for run in picture.runs or ():
        if run.status == "COMPLETED" and run.epoch not in finished:
            yield f"{run.workflow_id} is completed, and no event says that attempt {run.epoch} ended the task"


def no_run_outlives_its_task(picture: Picture) -> Iterator[str]:
    """Of a task that had rested for long when Temporal was asked no run was at work any more (liveness).

    A run whose task was taken from it may wait for the answer to its last call until the deadline of that.
    """
    task = picture.task
    if not task.state.is_settled or picture.runs_asked_at is None:
        return
    ended_at = max([task.updated_at, *(s.complete_by for s in picture.steps if s.complete_by)])
    if picture.runs_asked_at - ended_at > picture.terms.claim_delay:
        left = [run for run in picture.runs or () if run.status == "RUNNING"]
        yield from (f"it is {task.state}, {run.workflow_id} still runs" for run in left)


CHECKS = (
    attempt_has_one_run,
    run_has_its_claim,
    bound_run_was_given_the_record,
    finished_run_finished_its_task,
    no_run_outlives_its_task,
)
