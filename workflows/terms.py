"""Options of the Scheduler's activities: every timeout comes from the definition, and nothing is retried by Temporal.

The durable budget in the store owns the retries (E1), so the maximum of attempts is 1 everywhere.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from domain.definition import Step
from domain.messages import Grant, Work

ONCE = RetryPolicy(maximum_attempts=1)

_WRITE = timedelta(seconds=15)
"""A write, repeated by itself while the database does not answer."""


class LocalOptions(TypedDict):
    """Options of a local activity."""

    start_to_close_timeout: timedelta
    retry_policy: RetryPolicy
    summary: str | None


class QueuedOptions(TypedDict):
    """Options of an activity on a task queue."""

    task_queue: str
    schedule_to_close_timeout: timedelta
    retry_policy: RetryPolicy
    summary: str
    activity_id: str
    cancellation_type: ActivityCancellationType


LOCAL = LocalOptions(start_to_close_timeout=_WRITE, retry_policy=ONCE, summary=None)


def bookkeeping_options(name: str, work: Work) -> LocalOptions:
    """A boundary write, and for `perform` the call before it."""
    calling = timedelta(seconds=work.begin.within_s) if name == "perform" else timedelta(0)
    word = "undo" if work.undo else "step"
    return LocalOptions(
        start_to_close_timeout=calling + _WRITE, retry_policy=ONCE, summary=f"{word} {work.step}".strip()
    )


def queued_options(step: Step, work: Work, grant: Grant) -> QueuedOptions:
    """A call by a queued Agent: it has exactly the time that the store granted."""
    word = "undo" if work.undo else "step"
    return QueuedOptions(
        task_queue=step.queue or "",
        schedule_to_close_timeout=timedelta(seconds=max(grant.within_s, 0.001)),
        retry_policy=ONCE,
        summary=f"{word} {step.name}, {grant.calls} calls in {grant.within_s:.1f} s",
        activity_id=activity_id(step.name, work.undo),
        cancellation_type=ActivityCancellationType.ABANDON,
    )


def activity_id(step: str, undo: bool) -> str:
    """Id of a queued step's activity within its run: what a callback completes."""
    return f"{step}-undo" if undo else step
