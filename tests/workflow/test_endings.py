"""What a run does with requests that come while it ends, or are handed on: the real server, a scripted store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutError, TimeoutType
from temporalio.worker import Worker

from definitions import registry
from domain.attempts import AttemptEnd, RunInput, StepView, StepWork, WriteResult
from domain.ids import TASK_QUEUE, attempt_id, undo_request_id
from domain.messages import AgentRequest, OutcomeBox, TimedOut
from domain.undo_requests import UndoReason, UndoRequest, UndoVerdict
from testing.records import MACHINE
from testing.waiting import eventually
from workflows.compensation_request import CompensationRequest
from workflows.queued_call import outcome_of
from workflows.scheduler import Scheduler
from workflows.undo_requests import hand_on

QUEUE = TASK_QUEUE


@workflow.defn(sandboxed=False)
class HandsOn:
    """Hands a request on, as an attempt does while the store is away."""

    @workflow.run
    async def run(self, request: UndoReason, workflow_id: str) -> None:
        """Start who goes on asking, and end."""
        policy = workflow.ParentClosePolicy.ABANDON
        await workflow.start_child_workflow("CompensationRequest", request, id=workflow_id, parent_close_policy=policy)


@workflow.defn(sandboxed=False)
class CutOff:
    """Asks for undo while the store is away."""

    @workflow.run
    async def run(self, requests: list[UndoReason]) -> None:
        """Hand each on, one after the other."""
        for request in requests:
            await hand_on(request)


class Store:
    """A store that answers when it is told to: `performed` by step, `verdict` to a request for undo."""

    def __init__(self, verdict: Callable[[UndoRequest], str], performed: dict[str, WriteResult]) -> None:
        self._verdict, self._performed = verdict, performed
        self.asked: list[UndoRequest] = []
        self.reached, self.answers = asyncio.Event(), asyncio.Event()

    @activity.defn
    async def request_undo(self, request: UndoRequest) -> UndoVerdict:
        """Note the request, and answer it."""
        self.asked.append(request)
        self.reached.set()
        await self.answers.wait()
        return UndoVerdict.model_validate({"verdict": self._verdict(request), "task_id": request.task_id})

    @activity.defn(dynamic=True)
    async def inline_step(self, args: Sequence[RawValue]) -> WriteResult:
        """At once, or, for a step that nothing is known of, when it is told to."""
        work = activity.payload_converter().from_payload(args[0].payload, StepWork)
        if work.step not in self._performed:
            self.reached.set()
            await self.answers.wait()
        return self._performed.get(work.step, WriteResult(result={}))


@asynccontextmanager
async def worker(client: Client, store: Store) -> AsyncIterator[None]:
    """A worker of that store."""
    workflows: list[type] = [HandsOn, CutOff, CompensationRequest, Scheduler]
    activities: list[Callable[..., Any]] = [store.request_undo, store.inline_step]
    async with Worker(client, task_queue=QUEUE, workflows=workflows, activities=activities):
        yield


@pytest.mark.failure(46)
@pytest.mark.demand("F1")
async def test_request_joined_to_a_lost_attempts_is_asked_anew(client: Client) -> None:
    """The one handed on holds for that attempt only; whoever signalled the same workflow asked without a condition."""
    task_id = f"t-{uuid4().hex[:8]}"
    store = Store(lambda r: "not_holder" if r.holder else "accepted", {})
    handed = UndoReason(requester="temporal", reason="cancelled", holder=f"order/{task_id}/1")
    workflow_id = undo_request_id("order", task_id)
    async with worker(client, store):
        await client.execute_workflow(HandsOn.run, args=[handed, workflow_id], id=f"h-{task_id}", task_queue=QUEUE)
        await store.reached.wait()
        handle = await client.start_workflow(
            "CompensationRequest",
            id=workflow_id,
            task_queue=QUEUE,
            start_signal="compensate",
            start_signal_args=[{"requester": "anna", "reason": "customer called"}],
        )
        store.answers.set()
        assert (await handle.result())["verdict"] == "accepted"
    asked = list(dict.fromkeys((r.requester, r.holder, r.task_id) for r in store.asked))  # a write may be repeated
    assert asked == [("temporal", f"order/{task_id}/1", task_id), ("signal:anna", None, task_id)]


@pytest.mark.failure(46)
@pytest.mark.demand("F1")
async def test_request_handed_on_behind_one_of_an_attempt_is_not_lost(client: Client) -> None:
    """The run was cancelled, and a signal came as well, while the store was away: both are handed on, under one id."""
    task_id = f"t-{uuid4().hex[:8]}"
    store = Store(lambda r: "not_holder" if r.holder else "accepted", {})
    holder = f"order/{task_id}/1"
    both = [
        UndoReason(requester="temporal", reason="cancelled", holder=holder),
        UndoReason(requester="signal:anna", reason="customer called"),
    ]
    async with worker(client, store):
        await client.execute_workflow(CutOff.run, both, id=holder, task_queue=QUEUE)
        store.answers.set()
        handle = client.get_workflow_handle(undo_request_id("order", task_id))
        assert (await handle.result())["verdict"] == "accepted"
    asked = list(dict.fromkeys((r.requester, r.holder) for r in store.asked))
    assert asked == [("temporal", holder), ("signal:anna", None)]


@pytest.mark.failure(37)
@pytest.mark.demand("G6", "F1")
async def test_run_cancelled_while_it_ends_still_asks_for_undo(
    client: Client,
) -> None:
    """One of two steps has given up; the other one is still out when a signal comes, and then the cancel."""
    task_id = f"t-{uuid4().hex[:8]}"
    definition = registry().newest("provisioning")
    assert definition is not None
    steps = [
        StepView.model_validate({"name": s.name, "state": "NotStarted", "key_generation": 0}) for s in definition.steps
    ]
    given = RunInput(
        task_id=task_id, definition="provisioning", version=definition.version, epoch=1, undo=False, record=MACHINE,
        steps=steps,
    )  # fmt: skip
    store = Store(lambda _: "already", {"disk": WriteResult(end=AttemptEnd.GAVE_UP, cause="out of calls")})
    holder = attempt_id("provisioning", task_id, 1)
    async with worker(client, store):
        handle = await client.start_workflow(
            "provisioning", given, id=holder, task_queue=QUEUE, task_timeout=timedelta(seconds=2)
        )
        await store.reached.wait()
        await handle.signal("compensate", {"requester": "anna", "reason": "customer called"})
        await handle.cancel()
        await _task_done_after(handle, "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED")
        store.answers.set()
        with pytest.raises(WorkflowFailureError) as failed:
            await handle.result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == AttemptEnd.GAVE_UP
    assert {(r.requester, r.holder) for r in store.asked} == {("signal:anna", None)}


async def _task_done_after(handle: Any, kind: str) -> None:
    """Wait until the run has dealt with an event, as far as it could."""

    async def done() -> bool:
        names = [EventType.Name(e.event_type) for e in (await handle.fetch_history()).events]
        return kind in names and "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" in names[names.index(kind) :]

    await eventually(done)


@pytest.mark.demand("C8", "C9")
@pytest.mark.parametrize(
    ("name", "step", "details", "called"),
    [
        ("order", "charge", [], False),
        ("order", "charge", ["call 1, 5 of 5 left"], True),
        ("provisioning", "machine", ["call 1, 5 of 5 left"], False),
    ],
    ids=["it was not sent", "it was sent", "it was taken, and the answer is to come later"],
)
def test_timeout_at_a_queued_agent_says_whether_it_had_called(
    name: str, step: str, details: list[str], called: bool
) -> None:
    """An Agent heartbeats before each call, so the server knows; a service that hangs must open its breaker."""
    definition = registry().newest(name)
    assert definition is not None
    error = ActivityError(
        "", scheduled_event_id=1, started_event_id=2, identity="", activity_type="", activity_id="", retry_state=None
    )
    error.__cause__ = TimeoutError("", type=TimeoutType.SCHEDULE_TO_CLOSE, last_heartbeat_details=details)
    request = AgentRequest(task_id="t", step=step, action="", body={}, keys=[], epoch=1, calls=1, run_id="run")
    outcome = outcome_of(error, definition.step(step), request)
    assert isinstance(outcome, TimedOut)
    assert OutcomeBox(outcome=outcome)
    assert outcome.called is called
