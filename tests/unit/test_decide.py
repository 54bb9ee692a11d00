"""What the Supervisor asks for: each row of the table in `supervisor/decide.py`, and what holds whatever comes."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.states import StepState, TaskState
from store.supervision import ExpiredStep, ExpiredTask
from supervisor.decide import UNDO_THRESHOLD, decide
from tests.moves import may_move

POLICIES: dict[str, Any] = {
    "threshold": 3,
    "backoff_s": [2.0, 3.0, 60.0],
    "extended_wait_s": None,
    "extended_waits": 0,
    "on_spent": "undo",
    "most_attempts": 100,
}
EXTENDED = {**POLICIES, "extended_wait_s": 600.0, "extended_waits": 2}


def step(name: str = "charge", state: StepState = StepState.RUNNING, **more: Any) -> ExpiredStep:
    """A step that this attempt began, and that is overdue."""
    values: dict[str, Any] = {
        "failure_count": 0,
        "budget_left": 6,
        "undo_budget_left": 6,
        "reserved": 0,
        "gave_up": False,
        "current": True,
        "overdue": True,
    }
    return ExpiredStep(name=name, state=state, **{**values, **more})


def task(*steps: ExpiredStep, state: TaskState = TaskState.PROCESSING, **more: Any) -> ExpiredTask:
    """An expired task with these steps."""
    values: dict[str, Any] = {
        "task_id": "t-1",
        "locked_by": "order/t-1/4",
        "complete_by": datetime(2026, 1, 1, tzinfo=UTC),
        "last_event": 7,
        "past_pivot": False,
        "expiries": 3,
        "overdue_s": 1.0,
        "outage": False,
        "policies": POLICIES,
    }
    return ExpiredTask(state=state, steps=list(steps), **{**values, **more})


def undo_of(**more: Any) -> ExpiredTask:
    """An expired undo run whose undo of one step is overdue."""
    return task(step(state=StepState.UNDOING, **more), state=TaskState.COMPENSATING)


# --- nothing was begun ----------------------------------------------------------------------------------------


@pytest.mark.demand("B3", "D6", "D11")
@pytest.mark.parametrize(
    "untouched",
    [
        step(state=StepState.NOT_STARTED),
        step(state=StepState.COMPLETED),
        step(state=StepState.FAILED),
        step(current=False),
        step(overdue=False),
    ],
    ids=["not started", "completed", "failed", "begun by an earlier attempt", "its deadline has not come"],
)
def test_claim_that_began_nothing_goes_back_at_once_and_counts_nothing(untouched: ExpiredStep) -> None:
    found = decide(task(untouched, expiries=0))
    assert (found.target, found.delay_s, found.failed_steps) == (TaskState.PENDING, 0.0, [])


@pytest.mark.demand("D11")
def test_undo_claim_that_began_nothing_counts_nothing() -> None:
    found = decide(task(step(state=StepState.COMPLETED), state=TaskState.COMPENSATING, expiries=0))
    assert (found.target, found.delay_s, found.failed_steps) == (TaskState.COMPENSATING, 0.0, [])


@pytest.mark.demand("D12")
@pytest.mark.parametrize(("expiries", "delay"), [(0, 0.0), (1, 2.0), (2, 6.0), (9, 300.0)])
def test_claims_that_begin_nothing_again_and_again_back_off(expiries: int, delay: float) -> None:
    found = decide(task(step(state=StepState.NOT_STARTED), expiries=expiries))
    assert (found.delay_s, found.failed_steps) == (delay, [])


# --- below the threshold --------------------------------------------------------------------------------------


@pytest.mark.demand("D5", "D6")
@pytest.mark.parametrize(("before", "delay"), [(0, 2.0), (1, 6.0), (2, 18.0)])
def test_task_below_its_threshold_is_pending_after_its_back_off(before: int, delay: float) -> None:
    found = decide(task(step(failure_count=before)))
    assert (found.target, found.delay_s, found.failed_steps) == (TaskState.PENDING, delay, ["charge"])


@pytest.mark.demand("D6")
def test_back_off_never_exceeds_its_most() -> None:
    policies = {**POLICIES, "threshold": 10_000}
    assert decide(task(step(failure_count=5), policies=policies)).delay_s == 60.0
    assert decide(task(step(failure_count=9_000), policies=policies)).delay_s == 60.0
    beyond_any_float = {**policies, "backoff_s": [1.0, 1e9, 60.0]}
    assert decide(task(step(failure_count=9_000), policies=beyond_any_float)).delay_s == 60.0


@pytest.mark.demand("C12")
def test_attempt_that_gave_up_is_answered_like_one_that_timed_out() -> None:
    late, gave_up = decide(task(step("a"))), decide(task(step("a", gave_up=True, overdue=False)))
    assert gave_up.model_copy(update={"cause": late.cause}) == late
    assert (late.cause, gave_up.cause) == ("step a did not complete in time", "step a spent its calls")


def test_cause_names_each_failed_step_with_its_own_cause() -> None:
    found = decide(task(step("a"), step("b", gave_up=True), step("c", gave_up=True)))
    assert found.cause == "step a did not complete in time and step b, c spent its calls"


@pytest.mark.demand("D5")
def test_only_the_steps_that_are_overdue_have_failed() -> None:
    found = decide(task(step("a"), step("b", overdue=False), step("c", state=StepState.COMPLETED)))
    assert found.failed_steps == ["a"]


@pytest.mark.demand("D5")
def test_of_several_failed_steps_the_worst_decides() -> None:
    found = decide(task(step("a"), step("b", failure_count=2)))
    assert (found.delay_s, found.failed_steps) == (18.0, ["a", "b"])


@pytest.mark.demand("D5", "D9")
def test_decision_carries_the_holder_and_the_deadline_that_were_read() -> None:
    read = task(step())
    found = decide(read)
    assert (found.task_id, found.locked_by, found.complete_by) == (read.task_id, read.locked_by, read.complete_by)


@pytest.mark.failure(66)
@pytest.mark.demand("D1", "D5", "D7")
def test_expiry_across_an_outage_counts_nothing_and_passes_no_bound() -> None:
    found = decide(task(step(failure_count=3), outage=True, expiries=99))
    assert (found.target, found.failed_steps, found.outage) == (TaskState.PENDING, [], True)
    assert "not counted" in found.cause
    counted = decide(task(step()))
    assert (counted.failed_steps, counted.outage) == (["charge"], False)
    assert "not counted" not in counted.cause


@pytest.mark.failure(66)
@pytest.mark.demand("D5", "E1")
def test_last_calls_of_a_budget_return_after_an_outage() -> None:
    spent = step(budget_left=0, reserved=3)
    assert decide(task(spent, outage=True)).target is TaskState.PENDING
    assert decide(task(spent)).target is TaskState.COMPENSATING
    before = step(budget_left=0, reserved=3, current=False, gave_up=True)
    assert decide(task(before, outage=True)).target is TaskState.COMPENSATING


# --- past the threshold ---------------------------------------------------------------------------------------


@pytest.mark.demand("D7", "D8")
def test_past_the_threshold_the_task_is_undone() -> None:
    found = decide(task(step(failure_count=3)))
    assert (found.target, found.delay_s, found.failed_steps) == (TaskState.COMPENSATING, 0.0, ["charge"])


@pytest.mark.demand("D7")
def test_task_past_its_threshold_is_in_error_by_policy() -> None:
    policies = {**POLICIES, "on_spent": "error"}
    assert decide(task(step(failure_count=3), policies=policies)).target is TaskState.ERROR


@pytest.mark.demand("D7")
@pytest.mark.parametrize(
    ("before", "target", "delay"),
    [
        (2, TaskState.PENDING, 18.0),
        (3, TaskState.PENDING, 600.0),
        (4, TaskState.PENDING, 600.0),
        (5, TaskState.COMPENSATING, 0.0),
    ],
)
def test_extended_waits_come_after_the_threshold_and_before_undo(before: int, target: TaskState, delay: float) -> None:
    found = decide(task(step(failure_count=before), policies=EXTENDED))
    assert (found.target, found.delay_s) == (target, delay)


@pytest.mark.demand("E1", "E3")
@pytest.mark.parametrize("policies", [POLICIES, EXTENDED], ids=["plain", "with extended waits, which could not help"])
def test_spent_budget_is_undone_however_few_failures_there_were(policies: dict[str, Any]) -> None:
    found = decide(task(step(budget_left=0), policies=policies))
    assert (found.target, found.delay_s) == (TaskState.COMPENSATING, 0.0)
    assert "budget" in found.cause


@pytest.mark.demand("E1")
def test_step_whose_budget_is_spent_is_not_tried_for_ever() -> None:
    """A holder released it after a call, and the next attempt found nothing left to reserve."""
    found = decide(task(step(current=False, gave_up=True, budget_left=0)))
    assert (found.target, found.failed_steps) == (TaskState.COMPENSATING, ["charge"])


@pytest.mark.demand("E1")
def test_undo_whose_budget_is_spent_is_not_tried_for_ever() -> None:
    assert decide(undo_of(current=False, gave_up=True, undo_budget_left=0)).target is TaskState.COMPENSATION_FAILED


def test_undo_without_calls_left_is_what_the_attempt_could_not_begin() -> None:
    """A person has repaired another entry, so that the undo goes on; this one can't begin again."""
    left = {"state": StepState.UNDO_FAILED, "current": False, "overdue": False}
    found = decide(task(step(**left, gave_up=True, undo_budget_left=0), state=TaskState.COMPENSATING))
    assert found.target is TaskState.COMPENSATION_FAILED
    assert "the undo of step charge spent its calls" in found.cause
    assert "its budget of calls is spent" in found.cause
    waits = decide(task(step(**left, gave_up=False, undo_budget_left=0), state=TaskState.COMPENSATING))
    assert waits.target is TaskState.COMPENSATING


@pytest.mark.demand("D7", "F12")
def test_task_past_its_pivot_ends_in_error_and_is_not_undone() -> None:
    spent = step(budget_left=0)
    assert decide(task(spent, past_pivot=True)).target is TaskState.ERROR
    assert decide(task(spent, past_pivot=False)).target is TaskState.COMPENSATING


# --- undo -----------------------------------------------------------------------------------------------------


@pytest.mark.demand("D6", "F8")
@pytest.mark.parametrize(("before", "delay"), [(0, 2.0), (1, 6.0), (UNDO_THRESHOLD - 1, 60.0)])
def test_undo_below_its_threshold_is_tried_again_after_a_back_off(before: int, delay: float) -> None:
    found = decide(undo_of(failure_count=before))
    assert (found.target, found.delay_s, found.failed_steps) == (TaskState.COMPENSATING, delay, ["charge"])


@pytest.mark.demand("F8", "F9")
@pytest.mark.parametrize("more", [{"failure_count": UNDO_THRESHOLD}, {"undo_budget_left": 0}], ids=str)
def test_undo_past_its_threshold_or_budget_has_failed(more: dict[str, Any]) -> None:
    assert decide(undo_of(**more)).target is TaskState.COMPENSATION_FAILED


@pytest.mark.demand("E4")
def test_undo_has_a_budget_of_its_own() -> None:
    assert decide(undo_of(budget_left=0)).target is TaskState.COMPENSATING
    assert decide(task(step(undo_budget_left=0))).target is TaskState.PENDING


@pytest.mark.demand("D7")
def test_undo_knows_no_extended_wait() -> None:
    found = undo_of(failure_count=UNDO_THRESHOLD).model_copy(update={"policies": EXTENDED})
    assert decide(found).target is TaskState.COMPENSATION_FAILED


# --- bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.failure(18)
@pytest.mark.demand("D7")
@pytest.mark.parametrize(
    ("state", "target"),
    [(TaskState.PROCESSING, TaskState.ERROR), (TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED)],
)
def test_task_that_kills_its_workers_ends_at_its_most_attempts(state: TaskState, target: TaskState) -> None:
    nothing_begun = step(state=StepState.NOT_STARTED)
    assert decide(task(nothing_begun, state=state, expiries=98)).target in (TaskState.PENDING, TaskState.COMPENSATING)
    assert decide(task(nothing_begun, state=state, expiries=99)).target is target


@pytest.mark.demand("D3")
def test_task_of_an_unknown_definition_ends_with_a_person_after_retries() -> None:
    assert decide(task(step(), policies=None)).target is TaskState.PENDING
    assert decide(task(step(failure_count=3), policies=None)).target is TaskState.ERROR


def test_policies_of_an_older_release_that_lack_a_word_are_completed() -> None:
    assert decide(task(step(), policies={"threshold": 1})).target is TaskState.PENDING
    assert decide(task(step(failure_count=1), policies={"threshold": 1})).target is TaskState.ERROR


# --- whatever comes -------------------------------------------------------------------------------------------

counts = st.integers(0, 10_000)
steps_ = st.builds(
    ExpiredStep,
    name=st.sampled_from(["a", "b", "c", "d"]),
    state=st.sampled_from(StepState),
    failure_count=counts,
    budget_left=st.integers(0, 20),
    undo_budget_left=st.integers(0, 20),
    reserved=st.integers(0, 20),
    gave_up=st.booleans(),
    current=st.booleans(),
    overdue=st.none() | st.booleans(),
)
seconds = st.floats(0, 1e7)
policies_ = st.none() | st.builds(
    lambda threshold, backoff, wait, on_spent, most: {
        "threshold": threshold,
        "backoff_s": list(backoff),
        "extended_wait_s": wait[0] if wait else None,
        "extended_waits": wait[1] if wait else 0,
        "on_spent": on_spent,
        "most_attempts": most,
    },
    counts,
    st.tuples(seconds, st.floats(0, 1e9), seconds),
    st.none() | st.tuples(seconds, st.integers(1, 5)),
    st.sampled_from(["undo", "error"]),
    st.integers(1, 200),
)
tasks = st.builds(
    lambda state, steps, policies, expiries, past, outage: task(
        *steps, state=state, policies=policies, expiries=expiries, past_pivot=past, outage=outage
    ),
    st.sampled_from([TaskState.PROCESSING, TaskState.COMPENSATING]),
    st.lists(steps_, max_size=4, unique_by=lambda s: s.name),
    policies_,
    st.integers(0, 200),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.demand("D3", "D5", "D7")
@settings(deadline=None)
@given(tasks)
def test_every_answer_is_a_legal_move_with_finite_delay(found: ExpiredTask) -> None:
    answer = decide(found)
    assert may_move(found.state, answer.target)
    assert answer.target is not TaskState.PROCESSING
    assert math.isfinite(answer.delay_s)
    assert answer.delay_s >= 0
    undo = found.state is TaskState.COMPENSATING
    at_work = {s.name for s in found.steps if s.state is (StepState.UNDOING if undo else StepState.RUNNING)}
    refused = {s.name for s in found.steps if s.state is StepState.UNDO_FAILED and s.gave_up and not s.undo_budget_left}
    assert set(answer.failed_steps) <= (at_work | refused if undo else at_work)
    assert not (found.outage and answer.failed_steps)
    assert answer.cause
