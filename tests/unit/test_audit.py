"""Each invariant: a task that violates it is caught, by its name; clean ones pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from audit.checks import ALL_TASKS_CHECKS, TASK_CHECKS, violations_of, violations_of_all
from audit.checks.all_tasks import AllTasks
from audit.evidence import Evidence, Ledgers, Run, Runs, SubmissionReplies, SubmissionReply
from audit.task import AuditedTask
from store.admission import AdmissionCaps
from tests.unit.audited_tasks import (
    NOW,
    Json,
    answered_later,
    at,
    breakers,
    call,
    closed_by_hand,
    compensated,
    effect,
    expired,
    failed,
    moved,
    pending,
    processed,
    reply,
    resubmitted,
    run,
    running,
)


def broken(task: Json, change: Callable[[Json], object]) -> Json:
    change(task)
    return task


def found(task: Json) -> set[str]:
    return {v.invariant for v in violations_of(AuditedTask.model_validate(task)) if v.task_id == "t" and v.text}


DAMAGE: list[tuple[str, Json, Callable[[Json], object]]] = [
    ("events_are_numbered_without_a_gap", processed(), lambda p: p["events"][3].update(number=9)),
    ("events_fold_to_the_row", pending(), lambda p: p["row"].update(state="Compensating")),
    ("state_changes_are_legal", processed(), lambda p: p["events"][4].update(kind="expired", actor="supervisor")),
    ("epochs_rise_by_one_with_each_claim", processed(), lambda p: p["events"][3].update(epoch=2)),
    ("only_the_holder_moves_it", processed(), lambda p: p["events"][3].update(actor="order/t/7")),
    (
        "only_one_run_writes_for_an_attempt",
        processed(),
        lambda p: p["events"][4].update(detail={"completed": "b", "run_id": "run-of-a-reset"}),
    ),
    (
        "expiry_ends_the_hold_that_it_names",
        expired(),
        lambda p: p["events"][4].update(detail={"held_by": "order/t/0", "failed": ["b"]}),
    ),
    ("outage_counts_no_failure", expired(), lambda p: p.update(outages=[p["events"][4]["at"]])),
    ("requests_say_who_asked_and_why", compensated(), lambda p: p["events"][5].update(actor=" ")),
    ("requests_say_who_asked_and_why", compensated(), lambda p: p["events"][5].update(detail={})),
    ("events_fold_to_the_steps", processed(), lambda p: p["events"][4].update(detail={})),
    ("events_fold_to_the_steps", processed(), lambda p: p["steps"][1].update(state="Running")),
    ("failures_are_counted_once", failed(), lambda p: p["row"].update(failure_count=2)),
    ("step_failures_have_their_events", expired(), lambda p: p["steps"][1].update(failure_count=2)),
    ("finished_work_is_not_repeated", processed(), lambda p: p["events"][4].update(detail={"completed": "a"})),
    ("first_answer_decides_its_step", answered_later(), lambda p: p["steps"][1].update(result={"id": "other"})),
    ("first_answer_decides_its_step", answered_later(), lambda p: p["later_answers"][0].update(kind="failed")),
    (
        "first_answer_decides_its_step",
        failed() | {"later_answers": answered_later()["later_answers"]},
        lambda p: p["events"][4].update(detail={"step": "b", "code": "no"}),
    ),
    ("steps_begin_in_their_order", processed(), lambda p: p["events"][2].update(detail={"began": "b"})),
    (
        "no_step_begins_at_an_open_breaker",
        processed(),
        lambda p: p.update(breakers=breakers(moved("opened", "open", -90, "other"))),
    ),
    (
        "no_step_begins_at_an_open_breaker",
        processed(),
        lambda p: p.update(breakers=breakers(moved("probe", "open", -90, "other"))),
    ),
    (
        "no_step_begins_at_an_open_breaker",
        compensated(),
        lambda p: p.update(breakers=breakers(moved("by_hand", "forced open", -78))),
    ),
    ("processed_is_complete", processed(), lambda p: p["steps"][1].update(state="Failed")),
    ("compensated_is_undone", compensated(), lambda p: p["undo_log"][0].update(state="Failed")),
    ("what_needs_a_person_has_an_alert", failed(), lambda p: p.update(alerts=[])),
    ("what_needs_a_person_has_an_alert", resubmitted(), lambda p: p.update(alerts=[])),
    ("what_needs_a_person_says_why", failed(), lambda p: p["row"].update(error=None)),
    ("held_exactly_while_it_has_a_deadline", running(), lambda p: p["row"].update(complete_by=None)),
    ("nothing_is_stuck", running(), lambda p: p["row"].update(complete_by=at(-31))),
    ("nothing_is_stuck", pending(), lambda p: p["row"].update(not_before=at(-301))),
    ("budgets_are_not_overdrawn", running(), lambda p: p["steps"][0].update(budget_left=-1)),
    ("undo_runs_in_reverse", compensated(), lambda p: p["undo_log"][0].update(undone_at=at(-3))),
    ("undo_log_fits_the_steps", processed(), lambda p: p["undo_log"].pop()),
    ("steps_fit_the_state", running(), lambda p: p["steps"][1].update(epoch=2)),
    ("begun_task_has_its_business_record", running(), lambda p: p.update(digest=None)),
    (
        "effect_is_there_at_most_once",
        processed(),
        lambda p: p["ledgers"]["svc"]["effects"].append(effect("b", made=-30, generation=1)),
    ),
    ("processed_has_every_effect", processed(), lambda p: p["ledgers"]["svc"]["effects"].pop()),
    ("compensated_has_no_effect", compensated(), lambda p: p["ledgers"]["svc"]["effects"][0].update(undone_at=None)),
    ("calls_stay_within_what_was_granted", processed(), lambda p: p["ledgers"]["svc"]["calls"].append(call("a"))),
    (
        "no_effect_after_its_undo",
        compensated(),
        lambda p: p["ledgers"]["svc"].update(tombstones=[effect("a", undone=-50)]),
    ),
    ("tokens_never_fall", processed(), lambda p: p["ledgers"]["svc"]["effects"][0].update(token=2)),
    (
        "ledgers_show_undo_in_reverse",
        compensated(),
        lambda p: p["ledgers"]["svc"]["effects"][0].update(undone_at=at(-9)),
    ),
    ("money_adds_up", processed(), lambda p: p["ledgers"]["svc"]["effects"][0]["body"].update(amount_minor=99)),
    ("money_adds_up", compensated(), lambda p: p["ledgers"]["svc"]["effects"][0].update(undone_at=None)),
    (
        "calls_are_made_in_their_time",
        processed(),
        lambda p: p["ledgers"]["svc"]["calls"][0].update(received_at=at(-21)),
    ),
    (
        "calls_are_made_in_their_time",
        processed(),
        lambda p: p["ledgers"]["svc"]["calls"][0].update(time_left_ms=4_900),
    ),
    (
        "release_before_any_call_costs_nothing",
        processed(),
        lambda p: [p["events"][3]["detail"].update(calls=1), p["events"][4]["detail"].update(calls=0)],
    ),
    ("calls_are_made_in_their_time", processed(), lambda p: p["ledgers"]["svc"]["calls"][0].update(token=7)),
    (
        "no_call_was_sent_with_its_time_up",
        processed(),
        lambda p: p["ledgers"]["svc"]["calls"][0].update(time_left_ms=0),
    ),
    (
        "no_call_has_more_time_than_its_step",
        processed(),
        lambda p: p["ledgers"]["svc"]["calls"][0].update(time_left_ms=5_001),
    ),
    ("attempt_has_one_run", processed(), lambda p: p["runs"].append(run(1, "FAILED"))),
    ("run_has_its_claim", processed(), lambda p: p["runs"].append(run(2, "FAILED"))),
    ("run_has_its_claim", processed(), lambda p: p["runs"][0].update(workflow_id="gift/t/1")),
    ("bound_run_was_given_the_record", processed(), lambda p: p["runs"][0].update(digest="of another record")),
    ("finished_run_finished_its_task", failed(), lambda p: p["runs"][0].update(status="COMPLETED")),
    (
        "no_run_outlives_its_task",
        processed(),
        lambda p: [p["row"].update(updated_at=at(-301)), p["runs"][0].update(status="RUNNING")],
    ),
    ("task_was_submitted", processed(), lambda p: p["replies"].clear()),
    ("refused_submission_wrote_nothing", pending(), lambda p: p.update(replies=[reply("refused")])),
    ("same_submission_gets_the_same_answer", pending(), lambda p: p["replies"].append(reply("conflict"))),
    ("same_submission_gets_the_same_answer", pending(), lambda p: p["replies"].append(reply(digest="other"))),
    ("same_submission_gets_the_same_answer", pending(), lambda p: p["replies"].append(reply(new=True))),
    ("acknowledged_task_is_whole", pending(), lambda p: p.update(digest=None)),
    ("contradiction_is_kept_apart", pending(), lambda p: p["replies"].append(reply("conflict", "other"))),
]


@pytest.mark.failure(10)
@pytest.mark.demand("H10")
@pytest.mark.parametrize(("invariant", "task", "change"), DAMAGE, ids=[d[0] for d in DAMAGE])
def test_violated_invariant_is_named(invariant: str, task: Json, change: Callable[[Json], object]) -> None:
    assert invariant in found(broken(task, change))


CLEAN = [
    processed(),
    answered_later(),
    compensated(),
    running(),
    failed(),
    expired(),
    resubmitted(),
    pending(),
    closed_by_hand(),
]


@pytest.mark.parametrize("task", CLEAN, ids=[p["row"]["state"] for p in CLEAN])
def test_clean_task_violates_nothing(task: Json) -> None:
    assert found(task) == set()


def test_run_that_a_person_reset_is_no_second_run() -> None:
    assert found(broken(processed(), lambda p: p["runs"].append(run(1, "FAILED", is_reset=True)))) == set()


@pytest.mark.demand("C8")
def test_task_that_waits_for_an_open_breaker_is_not_stuck() -> None:
    waiting = broken(pending(), lambda p: p["row"].update(not_before=at(-301)))
    assert found(waiting | {"open_breakers": ["svc"]}) == set()


OPENED = moved("opened", "open", -90, "other")
LET_IN = {
    "another service": breakers(OPENED, service="other"),
    "just opened": breakers(moved("opened", "open", -60, "other")),
    "its own probe": breakers(OPENED, moved("probe", "open", -89, "t")),
    "its own probe until just now": breakers(
        OPENED, moved("probe", "open", -89, "t"), moved("probe_failed", "open", -58, "t")
    ),
    "closed again": breakers(OPENED, moved("closed", "closed", -58, "other")),
    "forced closed": breakers(OPENED, moved("by_hand", "forced closed", -58)),
    "opened afterwards": breakers(moved("opened", "open", -50, "other")),
}


@pytest.mark.demand("C10")
@pytest.mark.parametrize("of", [answered_later, failed], ids=["completed", "refused"])
def test_answer_that_came_when_its_step_had_ended_is_no_violation(of: Callable[[], Json]) -> None:
    task = of() | {"later_answers": answered_later()["later_answers"]}
    task["later_answers"][0].update(result={"id": "other"}, received_at=at(-54))
    task["events"][4]["detail"] |= {"step": "b"}
    assert found(task) == set()


@pytest.mark.demand("C8")
@pytest.mark.parametrize("of", LET_IN.values(), ids=LET_IN)
def test_step_that_a_breaker_may_have_let_begin_is_no_violation(of: Json) -> None:
    assert found(processed() | {"breakers": of}) == set()


def test_log_of_some_submitters_says_nothing_of_what_others_submitted() -> None:
    assert found(broken(processed(), lambda p: p.update(replies=None))) == set()


def submitted(task_id: str, after_s: float, until_s: float | None = None, definition: str = "order") -> AuditedTask:
    """A task that was taken in at an instant, and processed at another."""
    p = processed()
    p["row"].update(task_id=task_id, definition=definition)
    times = [after_s, after_s + 0.1, after_s + 0.2, after_s + 0.3, until_s]
    p["events"] = [e | {"at": at(t)} for e, t in zip(p["events"], times, strict=True) if t is not None]
    return AuditedTask.model_validate(p)


ONE_IN_FLIGHT = AdmissionCaps(in_flight=1, pending=9, pending_age=timedelta(hours=1))
STRANGERS: list[tuple[str, str, AllTasks]] = [
    (
        "acknowledged_task_is_there",
        "lost",
        AllTasks(
            Evidence(replies=SubmissionReplies.of([SubmissionReply.model_validate(reply() | {"task_id": "lost"})]))
        ),
    ),
    (
        "effect_belongs_to_a_task",
        "nobody",
        AllTasks(
            Evidence(
                ledgers=Ledgers.of(
                    {
                        "svc": {
                            "effects": [effect("a") | {"task_id": "nobody"}],
                            "tombstones": [],
                            "calls": [],
                            "probes": [],
                        }
                    },
                    NOW,
                )
            )
        ),
    ),
    (
        "run_belongs_to_a_task",
        "nobody",
        AllTasks(
            Evidence(
                runs=Runs.of(
                    [Run.model_validate(run(1) | {"workflow_id": f"order/nobody/{n}"}) for n in (1, "undo")], NOW
                )
            )
        ),
    ),
    ("record_belongs_to_a_task", "stray", AllTasks(Evidence(), orphans=["stray"])),
]


@pytest.mark.demand("H10")
@pytest.mark.parametrize(("invariant", "task_id", "seen"), STRANGERS, ids=[s[0] for s in STRANGERS])
def test_what_belongs_to_no_task_is_named(invariant: str, task_id: str, seen: AllTasks) -> None:
    assert [(v.invariant, v.task_id) for v in violations_of_all(seen)] == [(invariant, task_id)]


def over_the_cap(*tasks: AuditedTask, caps: AdmissionCaps = ONE_IN_FLIGHT) -> list[str]:
    seen = AllTasks(Evidence(caps=caps))
    for task in tasks:
        seen.add(task)
    return [v.task_id for v in violations_of_all(seen) if v.invariant == "admission_caps_held"]


@pytest.mark.demand("A9", "H10")
def test_task_that_was_taken_in_over_the_cap_is_named() -> None:
    assert over_the_cap(submitted("one", -100, -50), submitted("two", -60, -40)) == ["two"]


def test_task_taken_in_with_room_is_not_named() -> None:
    assert over_the_cap(submitted("one", -100, -50), submitted("two", -40)) == []


def test_task_of_another_definition_takes_no_room() -> None:
    assert over_the_cap(submitted("one", -100, -50), submitted("two", -60, -40, definition="other")) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.update(runs_asked_at=at(-280)),
        lambda p: p["steps"][1].update(complete_by=at(-20)),
    ],
    ids=["it had just ended when Temporal was asked", "the deadline of its last call had just passed"],
)
def test_run_that_may_still_be_about_to_end_is_no_violation(change: Callable[[Json], object]) -> None:
    task = processed()
    task["row"].update(updated_at=at(-301))
    task["runs"][0].update(status="RUNNING")
    assert found(task) == {"no_run_outlives_its_task"}
    change(task)
    assert found(task) == set()


def test_every_invariant_has_a_task_that_violates_it() -> None:
    assert {c.__name__ for c in TASK_CHECKS} == {name for name, _, _ in DAMAGE}
    assert {c.__name__ for c in ALL_TASKS_CHECKS} == {name for name, _, _ in STRANGERS} | {"admission_caps_held"}
