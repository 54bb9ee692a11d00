"""Options of the Scheduler's activities: every timeout comes from the definition, and nothing is retried by Temporal.

The durable budget in the store owns the retries, so the maximum of attempts is 1 everywhere.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

from domain.attempts import AttemptRef, StepOutcome, StepWork
from domain.definition import Step
from domain.messages import Grant

ONCE = RetryPolicy(maximum_attempts=1)

_WRITE = timedelta(seconds=15)
"""A write, repeated by itself while the database does not answer."""


_FIRST_LOOK_S, _LAST_LOOK_S = 5.0, 2.0
"""When a waiting attempt first looks into the inbox, and how long before its deadline it does so last."""


class LocalOptions(TypedDict):
    """Options of a local activity."""

    start_to_close_timeout: timedelta
    retry_policy: RetryPolicy
    summary: str | None


class QueuedOptions(TypedDict):
    """Options of an activity on a task queue."""

    task_queue: str
    schedule_to_close_timeout: timedelta
    schedule_to_start_timeout: timedelta
    retry_policy: RetryPolicy
    summary: str
    activity_id: str
    cancellation_type: ActivityCancellationType


LOCAL = LocalOptions(start_to_close_timeout=_WRITE, retry_policy=ONCE, summary=None)

UNTIL_DONE = LocalOptions(
    start_to_close_timeout=_WRITE,
    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
    summary=None,
)
"""For a write that must not be lost and changes nothing when it is repeated: while the store is away, again."""


def write_options(given: AttemptRef) -> LocalOptions:
    """A boundary write, and for an inline step the call before it."""
    within_s = given.begin.within_s if isinstance(given, StepWork) and not given.begin.queued else 0
    summary = summary_of(given) if isinstance(given, StepWork | StepOutcome) else None
    return LocalOptions(start_to_close_timeout=timedelta(seconds=within_s) + _WRITE, retry_policy=ONCE, summary=summary)


def summary_of(given: StepWork | StepOutcome) -> str:
    """What the Temporal UI says of an activity."""
    return f"{'undo' if given.undo else 'step'} {given.step}"


def inbox_pauses(within_s: float) -> list[float]:
    """Pauses between looks into the inbox: few, however long the step may take, and the last one in time."""
    pauses, pause_s, left_s = [], _FIRST_LOOK_S, within_s - _LAST_LOOK_S
    while left_s > 0:
        pauses.append(min(pause_s, left_s))
        pause_s, left_s = pause_s * 2, left_s - pause_s
    return pauses


def queued_options(step: Step, work: StepWork, grant: Grant) -> QueuedOptions:
    """A call by a queued Agent: it has exactly the time that the store granted; a callback finds it by its id.

    If no worker has taken it by then, none was given it: early enough for the row to be released before its deadline.
    """
    within_s = max(grant.within_s, 0.001)
    return QueuedOptions(
        task_queue=step.queue or "",
        schedule_to_close_timeout=timedelta(seconds=within_s),
        schedule_to_start_timeout=timedelta(seconds=max(within_s / 2, min(within_s * 0.8, within_s - 2))),
        retry_policy=ONCE,
        summary=f"{summary_of(work)}, {grant.calls} calls in {grant.within_s:.1f} s",
        activity_id=f"{step.name}-undo" if work.undo else step.name,
        cancellation_type=ActivityCancellationType.ABANDON,
    )
