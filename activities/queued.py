"""Agents on a task queue: one ordinary activity, for every action, in any worker that may reach the service.

Such a worker needs no database: the activity is the reservation. Its request says how many calls and since when,
Temporal's stamps say how much time has gone since, and the stall detector for how long the worker itself was stopped.
It is sent once; repeating it is safe because of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from activities.agent import AnswersLater
from activities.call_loop import Agents
from activities.clock import uptime
from activities.stalls import StallDetector
from domain.messages import AgentRequest, Completed, Json, Outcome, OutcomeBox, Overtaken, StoodDown


def agent_activity(agents: Agents, services: Collection[str], stalls: StallDetector) -> Callable[..., Any]:
    """The activity that carries out the actions of these services' Agents, each under its own name.

    It is dynamic: what this worker does not know comes here too, and is handed back with the reason.
    """

    @activity.defn(dynamic=True)
    async def act(args: Sequence[RawValue]) -> Json:
        started = uptime() - stalls.age_s()
        info = activity.info()
        request = _request(args)
        if request is None or request.service not in services:
            what = f"a worker on task queue {info.task_queue} can't carry it out: give it this release"
            raise _as_error(StoodDown.for_want(info.activity_type, what, request.epoch if request else 1))
        if request.run_id != info.workflow_run_id:
            cause = f"the reservation is of run {request.run_id}, not of {info.workflow_run_id}"
            raise _as_error(Overtaken(cause=cause, answered=False))
        try:
            outcome = await agents.carry_out(request, started + _left_s(info, request), activity.heartbeat)
        except AnswersLater:
            activity.raise_complete_async()
        if isinstance(outcome, Completed):
            return outcome.model_dump(mode="json")
        raise _as_error(outcome)

    return act


def _request(args: Sequence[RawValue]) -> AgentRequest | None:
    """What is asked for; None if this worker can't read it."""
    try:
        return activity.payload_converter().from_payload(args[0].payload, AgentRequest)
    except Exception:
        activity.logger.exception("a request that can't be read")
        return None


def _left_s(info: activity.Info, request: AgentRequest) -> float:
    """Time left when the worker was given the activity: the grant's, less what has gone since, by Temporal's clock.

    That clock may be set back between its stamps: what is left is never more than what was granted.
    """
    granted = info.schedule_to_close_timeout or timedelta(0)
    gone = info.started_time - (request.granted_at or info.scheduled_time)
    return (granted - max(timedelta(0), gone)).total_seconds()


def _as_error(outcome: Outcome) -> ApplicationError:
    """What came of it, as a typed failure that Temporal does not retry: the budget's owner decides."""
    text = str(getattr(outcome, "message", None) or getattr(outcome, "cause", ""))
    kind = type(outcome).__name__
    details = OutcomeBox(outcome=outcome).model_dump(mode="json")
    return ApplicationError(text, details, type=kind, non_retryable=True)
