"""Each invariant: a picture that violates it is caught, by its name; clean ones pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from audit.judge import CHECKS, LEDGER_CHECKS, judge
from audit.picture import Picture

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def event(number: int, kind: str, states: str, epoch: int, actor: str = "order/t/1", **detail: str) -> Json:
    source, target = states.split(">")
    return {
        "number": number,
        "kind": kind,
        "state_from": source or None,
        "state_to": target,
        "epoch": epoch,
        "actor": actor,
        "detail": detail,
    }


def step(name: str, state: str = "Completed", **more: Any) -> Json:
    budget = {"budget": 9, "budget_left": 8, "undo_budget": 30, "undo_budget_left": 30, "reserved": 0}
    return {"name": name, "state": state, "epoch": 1, **budget, **more}


def effect(name: str, token: int = 1, made: float = -50, undone: float | None = None, generation: int = 0) -> Json:
    undone_at = None if undone is None else at(undone)
    key = f"t:{name}:{generation}"
    return {"key": key, "step": name, "token": token, "created_at": at(made), "undone_at": undone_at}


def call(name: str, *, undo: bool = False, time_left_ms: int = 900) -> Json:
    key = f"t:{name}:{'undo' if undo else 0}"
    return {"key": key, "undo": undo, "time_left_ms": time_left_ms, "duplicate": False, "outcome": "executed"}


def processed() -> Json:
    """A task of two steps that went well; both at one service."""
    return {
        "task": {
            "task_id": "t",
            "definition": "order",
            "version": 1,
            "state": "Processed",
            "locked_by": None,
            "run_id": None,
            "epoch": 1,
            "complete_by": None,
            "not_before": at(-100),
            "record_digest": "d",
            "updated_at": at(-10),
            "last_event": 5,
            "last_seq": 2,
        },
        "steps": [step("a"), step("b")],
        "undo_log": [{"seq": n, "step": s, "state": "Logged", "undone_at": None} for n, s in ((1, "a"), (2, "b"))],
        "events": [
            event(1, "submitted", ">Pending", 0, "shop"),
            event(2, "claimed", "Pending>Processing", 1, "worker"),
            event(3, "advanced", "Processing>Processing", 1, began="a"),
            event(4, "advanced", "Processing>Processing", 1, completed="a", began="b"),
            event(5, "processed", "Processing>Processed", 1, completed="b"),
        ],
        "alerts": [],
        "digest": "d",
        "definition": {
            "policies": {"steps": {s: {"action": "svc.do", "undo": "svc.undo"} for s in "ab"}},
            "has_live_worker": True,
        },
        "ledgers": {"svc": {"effects": [effect("a"), effect("b", made=-40)], "calls": [call("a"), call("b")]}},
        "now": NOW,
    }


def compensated() -> Json:
    """The same, undone."""
    p = processed()
    p["task"] |= {"state": "Compensated", "epoch": 2, "last_event": 10}
    by = "order/t/2"
    p["events"] += [
        event(6, "undo_requested", "Processed>Compensating", 1, "ada"),
        event(7, "claimed", "Compensating>Compensating", 2, "worker"),
        event(8, "undo_advanced", "Compensating>Compensating", 2, by, began="b"),
        event(9, "undo_advanced", "Compensating>Compensating", 2, by, undone="b", began="a"),
        event(10, "compensated", "Compensating>Compensated", 2, by, undone="a"),
    ]
    p["steps"] = [step(s, "Undone", epoch=2, undo_budget_left=29) for s in "ab"]
    p["undo_log"] = [{"seq": n, "step": s, "state": "Undone", "undone_at": at(-n)} for n, s in ((1, "a"), (2, "b"))]
    p["ledgers"]["svc"]["effects"] = [effect("a", undone=-1), effect("b", made=-40, undone=-2)]
    p["ledgers"]["svc"]["calls"] += [call("b", undo=True), call("a", undo=True)]
    return p


def running() -> Json:
    """The same, in its second step."""
    p = processed()
    p["task"] |= {"state": "Processing", "locked_by": "order/t/1", "complete_by": at(5), "last_event": 4}
    p["events"].pop()
    p["steps"][1] |= {"state": "Running", "budget_left": 6, "reserved": 3}
    return p


def failed() -> Json:
    """The same, refused in its second step."""
    p = running()
    p["task"] |= {"state": "Error", "locked_by": None, "complete_by": None, "last_event": 5}
    p["events"].append(event(5, "failed", "Processing>Error", 1))
    p["steps"][1] |= {"state": "Failed", "reserved": 0}
    p["alerts"] = [{"kind": "task_in_error"}]
    return p


def pending() -> Json:
    """Just submitted."""
    p = processed()
    p["task"] |= {"state": "Pending", "epoch": 0, "last_event": 1, "last_seq": 0}
    p |= {"events": p["events"][:1], "undo_log": [], "steps": [step(s, "NotStarted", epoch=0) for s in "ab"]}
    return p | {"ledgers": {"svc": {}}, "digest": None}


def broken(picture: Json, change: Callable[[Json], object]) -> Json:
    change(picture)
    return picture


def found(picture: Json) -> set[str]:
    return {v.invariant for v in judge(Picture.model_validate(picture)) if v.task_id == "t" and v.text}


DAMAGE: list[tuple[str, Json, Callable[[Json], object]]] = [
    ("events_are_numbered_without_a_gap", processed(), lambda p: p["events"][3].update(number=9)),
    ("events_fold_to_the_row", pending(), lambda p: p["task"].update(state="Compensating")),
    ("state_changes_are_legal", processed(), lambda p: p["events"][4].update(kind="expired", actor="supervisor")),
    ("epochs_rise_by_one_with_each_claim", processed(), lambda p: p["events"][3].update(epoch=2)),
    ("only_the_holder_moves_it", processed(), lambda p: p["events"][3].update(actor="order/t/7")),
    ("requests_say_who_asked", compensated(), lambda p: p["events"][5].update(actor=" ")),
    ("events_fold_to_the_steps", processed(), lambda p: p["events"][4].update(detail={})),
    ("processed_is_complete", processed(), lambda p: p["steps"][1].update(state="Failed")),
    ("compensated_is_undone", compensated(), lambda p: p["undo_log"][0].update(state="Failed")),
    ("what_needs_a_person_has_an_alert", failed(), lambda p: p.update(alerts=[])),
    ("held_exactly_while_it_has_a_deadline", running(), lambda p: p["task"].update(complete_by=None)),
    ("nothing_is_stuck", running(), lambda p: p["task"].update(complete_by=at(-31))),
    ("nothing_is_stuck", pending(), lambda p: p["task"].update(not_before=at(-301))),
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
        "no_call_was_sent_with_its_time_up",
        processed(),
        lambda p: p["ledgers"]["svc"]["calls"][0].update(time_left_ms=0),
    ),
]


@pytest.mark.demand("H10")
@pytest.mark.parametrize(("invariant", "picture", "change"), DAMAGE, ids=[d[0] for d in DAMAGE])
def test_violated_invariant_is_named(invariant: str, picture: Json, change: Callable[[Json], object]) -> None:
    assert invariant in found(broken(picture, change))


@pytest.mark.parametrize("picture", [processed(), compensated(), running(), failed(), pending()])
def test_clean_task_violates_nothing(picture: Json) -> None:
    assert found(picture) == set()


def test_every_invariant_has_a_picture_that_violates_it() -> None:
    assert {c.__name__ for c in (*CHECKS, *LEDGER_CHECKS)} == {name for name, _, _ in DAMAGE}
