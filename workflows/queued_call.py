"""The call of an Agent on a task queue, as the run sees it: an activity, and what its end says of the call."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType

from domain.attempts import StepWork
from domain.definition import Step
from domain.messages import AgentRequest, Completed, Grant, Outcome, OutcomeBox, StoodDown, TimedOut
from workflows.options import queued_options


async def call_agent(step: Step, work: StepWork, grant: Grant) -> Outcome:
    """What the activity comes to. Its schedule-to-close timeout is the durable timer of the race."""
    if grant.within_s <= 0:
        return StoodDown(cause="the time that was granted is gone", sent=0, retry_after_s=1)
    request = work.request.granted(grant, workflow.info().run_id)
    options = queued_options(step, work, grant)
    try:
        return Completed.model_validate(await workflow.execute_activity(request.action, request, **options))
    except ActivityError as error:
        return outcome_of(error, step, request)
    except ValidationError:  # a person completed it
        return TimedOut(cause="what the activity was completed with can't be read")


def outcome_of(error: ActivityError, step: Step, request: AgentRequest) -> Outcome:
    """What a failed activity says of the call: the Agent's own word, or that nobody took it, or that time won."""
    cause = error.cause
    if isinstance(cause, TimeoutError):
        if cause.type is TimeoutType.SCHEDULE_TO_START:
            what = "no worker took a step from it in time: start one, or more"
            return StoodDown.for_want(f"task queue {step.queue}", what, request.epoch)
        # an Agent heartbeats before each call; one that answers later has answered
        called = bool(cause.last_heartbeat_details) and not step.answers_later
        return TimedOut(cause="the deadline came first", called=called)
    if isinstance(cause, ApplicationError):
        if cause.details:
            return _outcome_in(cause.details[0])
        if cause.type == "NotFoundError" and cause.message.startswith(f"Activity function {request.action} for "):
            what = f"a worker on task queue {step.queue} can't carry it out: give it this release"
            return StoodDown.for_want(request.action, what, request.epoch)
    return TimedOut(cause=f"the Agent failed: {cause or error}")


def _outcome_in(details: Any) -> Outcome:
    try:
        return OutcomeBox.model_validate(details).outcome
    except ValidationError:
        return TimedOut(cause="what the activity failed with can't be read")
