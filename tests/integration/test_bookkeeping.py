"""What the Scheduler's bookkeeping notes behind a boundary: late answers, and what the service's breaker is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.agents import all_agents
from activities.bookkeeping import Bookkeeping
from activities.call_loop import Agents
from activities.queued import agent_activity
from activities.reservations import Reservations
from activities.stalls import StallDetector
from domain.attempts import AttemptEnd, StepOutcome, StepWork, WriteResult
from domain.faults import KEY_FORGOTTEN
from domain.ids import idempotency_keys
from domain.messages import AgentRequest, Completed, Failed, Outcome, OutcomeBox, Overtaken
from store.claims import Hold
from store.database import Params, query
from store.inbox import InboxStore
from tests.integration.store_bench import RUN, StoreBench, begin

Statement = tuple[str, Params]
RESET = "the run that was made by reset"


def activity_of(hold: Hold) -> ActivityEnvironment:
    """An activity of this run."""
    environment = ActivityEnvironment()
    environment.payload_converter = pydantic_data_converter.payload_converter
    environment.info = replace(
        environment.info, workflow_id=hold.locked_by, workflow_type="order", workflow_run_id=hold.run_id
    )
    return environment


def request_of(hold: Hold) -> AgentRequest:
    """A charge, under a reservation of the run that held the task first."""
    keys = idempotency_keys(hold.task_id, "charge", 0)
    body = {"amount_minor": 1, "currency": "EUR", "card_token": "tok"}
    terms = {"task_id": hold.task_id, "step": "charge", "action": "payments.charge", "epoch": hold.epoch}
    return AgentRequest(**terms, body=body, keys=keys, calls=3, run_id=RUN)


async def recorded(store: StoreBench, hold: Hold, outcome: Outcome) -> WriteResult:
    """Write the boundary behind the outcome of a queued Agent, as this run."""
    books = Bookkeeping(store.store, InboxStore(store.database), store.breakers, Reservations(), Agents([], {}))
    written = StepOutcome(
        task_id=hold.task_id, epoch=hold.epoch, step="charge", undo=False, service="payments", outcome=outcome
    )
    return await activity_of(hold).run(books.write_outcome, written)


async def by_an_agent(hold: Hold) -> Outcome:
    """What a queued Agent makes of a request of another run: it sends nothing."""
    act = agent_activity(Agents(list(all_agents()), {}), ["payments"], StallDetector())
    payload = pydantic_data_converter.payload_converter.to_payload(request_of(hold))
    with pytest.raises(ApplicationError) as refused:
        await activity_of(hold).run(act, [RawValue(payload)])
    return OutcomeBox.model_validate(refused.value.details[0]).outcome


@pytest.mark.failure(14)
@pytest.mark.demand("C8", "C10")
@pytest.mark.parametrize("answered", [True, False], ids=["the service's fence", "the Agent by itself"])
async def test_refusal_of_a_stale_run_counts_only_by_its_service(
    store: StoreBench, task_id: str, answered: bool
) -> None:
    hold = replace(await store.begun(task_id, step="charge"), run_id=RESET)
    await store.breakers.failed("payments", "another", "503", report="another")
    outcome = Overtaken(cause="412") if answered else await by_an_agent(hold)
    report = await recorded(store, hold, outcome)
    (service,) = store.owner("SELECT failures FROM service WHERE name = 'payments'")
    assert report.end is AttemptEnd.SUPERSEDED
    assert ("late_answer" in store.kinds(task_id)) is answered
    assert service["failures"] == (0 if answered else 1)


@pytest.mark.demand("C8")
async def test_refusal_that_the_agent_itself_makes_closes_no_breaker(store: StoreBench, task_id: str) -> None:
    hold = await store.begun(task_id, step="charge")
    await store.breakers.failed("payments", "another", "503", report="another")
    forgotten = Failed(code=KEY_FORGOTTEN, message="it remembers keys for a day", unknown_before=True)
    report = await recorded(store, hold, forgotten)
    assert report.end is AttemptEnd.PERMANENT_FAULT
    assert store.owner("SELECT failures FROM service WHERE name = 'payments'") == [{"failures": 1}]


class Slow(Agents):
    """Agents whose call is answered when they are told to."""

    def __init__(self) -> None:
        self.calls, self.reached, self.answer = 0, asyncio.Event(), asyncio.Event()

    async def carry_out(self, *_: Any, **__: Any) -> Outcome:
        """Make the call."""
        self.calls += 1
        self.reached.set()
        await self.answer.wait()
        return Completed(result={"call": self.calls}, calls=1)


@pytest.mark.failure(91)
@pytest.mark.demand("E1", "C2", "B4")
@pytest.mark.parametrize("evicted", [False, True], ids=["while both are wanted", "although the first is cancelled"])
async def test_activity_that_is_run_again_while_it_lives_joins_its_call(
    store: StoreBench, task_id: str, evicted: bool
) -> None:
    """A workflow task that fails in mid-stretch has all its local activities run again; a third time they are over."""
    hold = await store.claimed(task_id)
    slow = Slow()
    books = Bookkeeping(store.store, InboxStore(store.database), store.breakers, Reservations(), slow)
    terms = {"task_id": task_id, "epoch": hold.epoch, "nonce": hold.nonce, "step": "stock", "undo": False}
    then = begin("charge").model_copy(update={"queued": True})
    request = request_of(hold).model_copy(update={"step": "stock", "action": "stock.reserve"})
    work = StepWork.model_validate({**terms, "begin": begin("stock"), "then": then, "request": request})
    args = [RawValue(pydantic_data_converter.payload_converter.to_payload(work))]
    first = asyncio.create_task(activity_of(hold).run(books.inline_step, args))
    await slow.reached.wait()
    second = asyncio.create_task(activity_of(hold).run(books.inline_step, args))
    if evicted:
        first.cancel()
        await asyncio.wait([first])
    slow.answer.set()
    reports = [await second, await activity_of(hold).run(books.inline_step, args)] + ([] if evicted else [await first])
    assert slow.calls == 1
    assert [(r.end, r.result, r.grant is not None) for r in reports] == [(None, {"call": 1}, True)] * len(reports)
    row = store.step(task_id, "stock")
    assert (row["state"], row["budget"] - row["budget_left"], row["outcome_unknown"]) == ("Completed", 1, False)
    charge = store.step(task_id, "charge")
    assert charge["budget"] - charge["budget_left"] == then.calls, "reserved once"


@pytest.mark.failure(13)
@pytest.mark.demand("C11")
async def test_of_two_answers_at_once_the_first_seen_counts_for_ever(store: StoreBench, task_id: str) -> None:
    """The first has its time, and is not committed yet when the second comes."""
    inbox, key = InboxStore(store.database), f"{task_id}:machine:0"
    done, refused = (
        Completed(result={"of": "the first"}, calls=None),
        Failed(code="no", message="", unknown_before=True),
    )
    put: Statement = (query("put_answer"), {"response_id": "1", "key": key, "body": _boxed(done)})
    first_in, may_commit = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> None:
        first_in.set()
        await may_commit.wait()

    lock: Statement = ("SELECT pg_advisory_xact_lock(hashtextextended(%(key)s, 0))", {"key": key})
    first = asyncio.create_task(store.database.transaction(lock, put, before_commit=wait))
    await first_in.wait()
    second = asyncio.create_task(inbox.put("2", key, refused))
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    while not store.owner(waiting):
        assert not second.done(), "it has overtaken the first"
        await asyncio.sleep(0.01)  # between two looks; the condition, not the time, decides
    may_commit.set()
    await asyncio.gather(first, second)
    assert await inbox.find(key) == done


def _boxed(outcome: Outcome) -> str:
    return OutcomeBox(outcome=outcome).model_dump_json()
