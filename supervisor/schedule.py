"""The Temporal Schedule that starts sweeps: overlap skip, short catch-up; made again if it is missing.

A sweep whose worker dies is given to another one within a fraction of the interval: the task's time-out.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from supervisor.activities import SweepSettings

SCHEDULE_ID = "supervisor"
QUEUE = "supervisor"


async def ensure_schedule(client: Client, terms: SweepSettings) -> bool:
    """Create the Schedule, or bring an existing one to these terms. True if it was missing."""
    schedule = _schedule(terms)
    try:
        await client.create_schedule(SCHEDULE_ID, schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(SCHEDULE_ID).update(lambda found: _update(found, schedule))
        return False
    return True


def _update(found: ScheduleUpdateInput, wanted: Schedule) -> ScheduleUpdate:
    wanted.state = found.description.schedule.state
    return ScheduleUpdate(schedule=wanted)


def _schedule(terms: SweepSettings) -> Schedule:
    interval = timedelta(seconds=terms.interval_s)
    return Schedule(
        action=ScheduleActionStartWorkflow(
            "Supervise",
            terms,
            id="supervise",
            task_queue=QUEUE,
            execution_timeout=max(interval, timedelta(seconds=10)),
            task_timeout=max(interval / 4, timedelta(seconds=1)),
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=interval)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=max(interval, timedelta(seconds=10))),
    )
