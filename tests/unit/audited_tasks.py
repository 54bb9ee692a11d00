"""One task, `t`, as the audit may find it: it went each way without a fault, by all evidence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def event(number: int, kind: str, states: str, epoch: int, actor: str = "order/t/1", **detail: str) -> Json:
    source, target = states.split(">")
    run_id = {"run_id": f"run-{epoch}"} if actor.startswith("order/") else {}
    return {
        "number": number,
        "kind": kind,
        "state_from": source or None,
        "state_to": target,
        "epoch": epoch,
        "actor": actor,
        "detail": detail | run_id,
        "at": at(number - 60),
    }


def step(name: str, state: str = "Completed", **more: Any) -> Json:
    budget = {"budget": 9, "budget_left": 8, "undo_budget": 30, "undo_budget_left": 30, "reserved": 0}
    unset = {"failure_count": 0, "key_generation": 0, "complete_by": None, "completed_at": None, "result": None}
    return {"name": name, "state": state, "epoch": 1, **budget, **unset, **more}


def effect(name: str, token: int = 1, made: float = -50, undone: float | None = None, generation: int = 0) -> Json:
    undone_at = None if undone is None else at(undone)
    key = f"t:{name}:{generation}"
    body = {"amount_minor": 100, "currency": "EUR"}
    return {"key": key, "step": name, "token": token, "created_at": at(made), "undone_at": undone_at, "body": body}


def entry(seq: int, name: str, state: str = "Logged", undone: float | None = None) -> Json:
    request = {"amount_minor": 100, "currency": "EUR"}
    return {"seq": seq, "step": name, "state": state, "undone_at": undone and at(undone), "request": request}


def run(epoch: int, status: str = "COMPLETED", **more: Any) -> Json:
    return {"workflow_id": f"order/t/{epoch}", "run_id": f"run-{epoch}", "status": status, **more}


def reply(verdict: str = "accepted", digest: str = "d", **more: Any) -> Json:
    return {"task_id": "t", "submitter": "shop", "digest": digest, "verdict": verdict, **more}


def call(name: str, *, undo: bool = False, received: float = -50) -> Json:
    return {
        "key": f"t:{name}:{'undo' if undo else 0}",
        "undo": undo,
        "token": 1 + undo,
        "time_left_ms": 900,
        "duplicate": False,
        "outcome": "executed",
        "received_at": at(received),
    }


def policy(*after: str) -> Json:
    return {"action": "svc.do", "undo": "svc.undo", "within_s": 5, "after": list(after)}


def moved(kind: str, state: str, after_s: float, task_id: str | None = None) -> Json:
    """What a breaker did."""
    return {"kind": kind, "state_to": state, "task_id": task_id, "at": at(after_s)}


def breakers(*events: Json, service: str = "svc") -> Json:
    return {"events": {service: list(events)}}


def processed() -> Json:
    """A task of two steps that went well; both at one service."""
    return {
        "row": {
            "task_id": "t",
            "definition": "order",
            "version": 1,
            "state": "Processed",
            "confirmed": True,
            "failure_count": 0,
            "error": None,
            "locked_by": None,
            "run_id": None,
            "epoch": 1,
            "complete_by": None,
            "not_before": at(-100),
            "record_digest": "d",
            "submitter": "shop",
            "updated_at": at(-10),
            "last_event": 5,
            "last_seq": 2,
        },
        "steps": [step("a"), step("b")],
        "undo_log": [entry(1, "a"), entry(2, "b")],
        "events": [
            event(1, "submitted", ">Pending", 0, "shop"),
            event(2, "claimed", "Pending>Processing", 1, "worker"),
            event(3, "advanced", "Processing>Processing", 1, began="a"),
            event(4, "advanced", "Processing>Processing", 1, completed="a", began="b"),
            event(5, "processed", "Processing>Processed", 1, completed="b"),
        ],
        "alerts": [],
        "later_answers": [],
        "breakers": {"events": {}},
        "open_breakers": [],
        "outages": [],
        "digest": "d",
        "definition": {
            "policies": {"steps": {"a": policy(), "b": policy("a")}},
            "has_live_worker": True,
        },
        "runs": [run(1)],
        "replies": [reply(new=True), reply()],
        "ledgers": {"svc": {"effects": [effect("a"), effect("b", made=-40)], "calls": [call("a"), call("b")]}},
        "now": NOW,
        "runs_asked_at": NOW,
    }


def answered_later() -> Json:
    """The same, whose second step was answered later."""
    p = processed()
    p["steps"][1] |= {"result": {"id": "b-1"}, "completed_at": at(-55)}
    p["later_answers"] = [{"key": "t:b:0", "kind": "completed", "result": {"id": "b-1"}, "received_at": at(-55.5)}]
    return p


def compensated() -> Json:
    """The same, undone."""
    p = processed()
    p["row"] |= {"state": "Compensated", "epoch": 2, "last_event": 10}
    by = "order/t/2"
    p["events"] += [
        event(6, "undo_requested", "Processed>Compensating", 1, "ada", reason="returned"),
        event(7, "claimed", "Compensating>Compensating", 2, "worker"),
        event(8, "undo_advanced", "Compensating>Compensating", 2, by, began="b"),
        event(9, "undo_advanced", "Compensating>Compensating", 2, by, undone="b", began="a"),
        event(10, "compensated", "Compensating>Compensated", 2, by, undone="a"),
    ]
    p["steps"] = [step(s, "Undone", epoch=2, undo_budget_left=29) for s in "ab"]
    p["undo_log"] = [entry(1, "a", "Undone", -1), entry(2, "b", "Undone", -2)]
    p["runs"].append(run(2))
    p["ledgers"]["svc"]["effects"] = [effect("a", undone=-1), effect("b", made=-40, undone=-2)]
    p["ledgers"]["svc"]["calls"] += [call("b", undo=True), call("a", undo=True)]
    return p


def running() -> Json:
    """The same, in its second step."""
    p = processed()
    p["row"] |= {"state": "Processing", "locked_by": "order/t/1", "complete_by": at(5), "last_event": 4}
    p["events"].pop()
    p["steps"][1] |= {"state": "Running", "budget_left": 6, "reserved": 3}
    p["runs"] = [run(1, "RUNNING")]
    return p


def failed() -> Json:
    """The same, refused in its second step."""
    p = running()
    p["row"] |= {"state": "Error", "locked_by": None, "complete_by": None, "last_event": 5}
    p["events"].append(event(5, "failed", "Processing>Error", 1))
    p["steps"][1] |= {"state": "Failed", "reserved": 0}
    p["alerts"] = [{"kind": "task_in_error"}]
    p["row"] |= {"failure_count": 1, "error": {"message": "no"}}
    p["runs"] = [run(1, "FAILED")]
    return p


def expired() -> Json:
    """The same, whose second step did not complete in time."""
    p = failed()
    detail = {"held_by": "order/t/1", "failed": ["b"]}
    p["events"][4] = event(5, "expired", "Processing>Error", 1, "supervisor") | {"detail": detail}
    p["steps"][1] |= {"state": "Running", "failure_count": 1}
    return p


def resubmitted() -> Json:
    """The same, sent on its way again."""
    p = expired()
    p["events"].append(event(6, "resubmitted", "Error>Pending", 1, "ada", reason="mended"))
    p["row"] |= {"state": "Pending", "last_event": 6, "failure_count": 0, "error": None}
    p["steps"][1] |= {"failure_count": 0}
    return p


def pending() -> Json:
    """Just submitted."""
    p = processed()
    p["row"] |= {"state": "Pending", "epoch": 0, "last_event": 1, "last_seq": 0}
    p |= {
        "events": p["events"][:1],
        "undo_log": [],
        "steps": [step(s, "NotStarted", epoch=0, budget_left=9) for s in "ab"],
    }
    return p | {"ledgers": {"svc": {}}, "runs": []}


def closed_by_hand() -> Json:
    """Its last undo was refused, and a person closed it; the effect stands."""
    p = compensated()
    p["events"][7:9] = [
        event(8, "undo_failed", "Compensating>CompensationFailed", 2, "order/t/2", step="b"),
        event(9, "undo_repaired", "CompensationFailed>Compensating", 2, "ada", reason="by hand", step="b"),
    ]
    p["events"][9] |= {"kind": "claimed", "state_to": "Compensating", "epoch": 3, "actor": "worker", "detail": {}}
    p["events"] += [
        event(11, "undo_advanced", "Compensating>Compensating", 3, "order/t/3", began="a"),
        event(12, "compensated", "Compensating>Compensated", 3, "order/t/3", undone="a"),
        event(13, "late_answer", "Compensated>Compensated", 3, "order/t/1"),
        event(14, "of_a_newer_release", "Compensated>Compensated", 3, "somebody"),
    ]
    p["row"] |= {"epoch": 3, "last_event": 14}
    p["undo_log"][1] |= {"state": "ClosedByHand", "undone_at": None}
    p["ledgers"]["svc"]["effects"][1]["undone_at"] = None
    p["ledgers"]["svc"]["calls"] = [call("a"), call("b"), call("a", undo=True) | {"token": 3}]
    return p | {"runs": [run(1), run(2, "FAILED"), run(3)], "alerts": [{"kind": "compensation_failed"}]}
