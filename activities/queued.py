"""Agents on a task queue: one ordinary activity an action, in any worker that may reach the service.

Such a worker needs no database: the activity is the reservation (its request says how many calls, Temporal's stamps
say how much time, less what the worker itself was stopped for). It is sent once; repeating it is safe because of the
key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.agent import Agents, AnswersLater
from activities.pulse import Pulse
from domain.messages import AgentRequest, Completed, Json, Outcome, OutcomeBox, Overtaken


def agent_activities(agents: Agents, services: Iterable[str], pulse: Pulse) -> list[Callable[..., Any]]:
    """The activities of these services' Agents, each named `service.method`."""
    wanted = set(services)
    return [_as_activity(agents, name, pulse) for name, spec in agents.actions.items() if spec.service in wanted]


def _as_activity(agents: Agents, name: str, pulse: Pulse) -> Callable[..., Any]:
    @activity.defn(name=name)
    async def act(request: AgentRequest) -> Json:
        started = monotonic() - pulse.age_s()
        info = activity.info()
        if request.run_id != info.workflow_run_id:
            cause = f"the reservation is of run {request.run_id}, not of {info.workflow_run_id}"
            raise _as_error(Overtaken(cause=cause, answered=False))
        if info.schedule_to_close_timeout is None:
            raise ApplicationError("a queued Agent needs a schedule-to-close timeout", non_retryable=True)
        left = info.schedule_to_close_timeout - (info.started_time - info.scheduled_time)
        try:
            outcome = await agents.perform(request, started + left.total_seconds(), activity.heartbeat)
        except AnswersLater:
            activity.raise_complete_async()
        if isinstance(outcome, Completed):
            return outcome.model_dump(mode="json")
        raise _as_error(outcome)

    return act


def _as_error(outcome: Outcome) -> ApplicationError:
    """What came of it, as a typed failure that Temporal does not retry: the budget's owner decides."""
    text = str(getattr(outcome, "message", None) or getattr(outcome, "cause", ""))
    kind = type(outcome).__name__
    details = OutcomeBox(outcome=outcome).model_dump(mode="json")
    return ApplicationError(text, details, type=kind, non_retryable=True)
