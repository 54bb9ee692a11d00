"""The scenarios of the crash matrix: a script, which points a task passes in it, and where it must end.

A path lists its points in the order in which a run passes them, in stages; within a stage the order is open. A kill at
one stage and a second kill at a later one make a pair: the later point is passed by the attempt that takes over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from chaos.matrix import scripts
from chaos.matrix.case_run import CaseRun
from domain.states import TaskState
from testing.records import FULL

Stage = tuple[str, ...]


@dataclass(frozen=True)
class Scenario:
    """What happens to a task, where it must end, and which effects must stand then.

    Attributes:
        path: Its points, for pairs of kills. firsts: points of it that can't be a pair's second kill.
        once: Single kills: the points of the path that no other scenario shows, and what is not on the path.
        more: Series of kills. `*` before a point: whoever passes it, for whichever task; `|`: whichever comes first.
        later: The script says itself from when on somebody dies. supervised: only the Schedule sweeps.
        proxied: It cuts lines.
    """

    name: str
    script: Callable[[CaseRun], Awaitable[None]]
    end: TaskState
    effects: Mapping[str, int]
    path: tuple[Stage, ...] = ()
    firsts: frozenset[str] = frozenset()
    once: tuple[Stage, ...] = ()
    more: tuple[Stage, ...] = ()
    later: bool = False
    supervised: bool = False
    proxied: bool = False


def around(*names: str) -> tuple[Stage, ...]:
    """Before and after each of these."""
    return tuple((f"{when}:{name}",) for name in names for when in ("before", "after"))


def call(step: str, undo: str = "") -> tuple[Stage, ...]:
    """The points of a step's call, and of the boundary behind it."""
    calls = tuple((f"{when}:{undo}call:{step}",) for when in ("before", "sent", "replied", "after"))
    return (*calls, *around(f"{undo}complete:{step}"))


def at_once(*paths: tuple[Stage, ...]) -> Stage:
    """Several paths side by side."""
    return tuple(point for path in paths for (point,) in path)


CLAIMED = (("after:claim",), *around("snapshot", "load_records", "start_workflow_execution"))
CLAIMED_FOR_UNDO = (("after:claim",), *around("snapshot", "start_workflow_execution"))
FORWARD = (*CLAIMED, *around("begin:stock"), *call("stock"), *call("charge"), *call("ship"), *call("confirm"))
UNDO = (*around("undo_begin:ship"), *call("ship", "undo_"), *call("charge", "undo_"), *call("stock", "undo_"))
CALLED_BACK = around("put_answer", "respond_activity_task_completed_by_id")
MADE = (
    *CLAIMED,
    at_once(*(around(f"begin:{s}") for s in ("address", "disk")), *(call(s) for s in ("address", "disk"))),
    *around("begin:machine"),
    *call("machine")[:4],
    *CALLED_BACK,
    *call("machine")[4:],
    *call("name")[:4],
)
TERMINATED = ("describe_workflow_execution", "terminate_workflow_execution", "get_workflow_execution_history")
SWEPT = ("begin_sweep", "expired", "finish_sweep", "find_stale_runs", "forget_stale_runs", "watch_stuck")
SCHEDULED = ("describe_namespace", "create_schedule", "describe_schedule", "update_schedule")
UNMADE = (
    *around("undo_begin:machine"),
    *call("machine", "undo_"),
    at_once(call("disk", "undo_"), call("address", "undo_")),  # whichever began last is undone first
)


def begun_later(undo: str, *steps: tuple[str, str]) -> tuple[Stage, ...]:
    """A step that the boundary before it has begun is begun by itself only by an attempt that takes over."""
    return tuple(
        (f"after:{undo}complete:{before}", f"{when}:{undo}begin:{step}")
        for before, step in steps
        for when in ("before", "after")
    )


def asked(*steps: str) -> tuple[Stage, ...]:
    """Where a call may have been made, the attempt that takes over asks before it sends."""
    return tuple((f"sent:call:{s}", f"{when}:ask:{s}") for s in steps for when in ("before", "sent", "replied"))


def behind(first: str, *names: str) -> tuple[Stage, ...]:
    """Before and after each of these, after a first kill that leads there."""
    return tuple((first, point) for (point,) in around(*names))


def whoever(*names: str) -> tuple[Stage, ...]:
    """Before and after each of these, whichever task they are for."""
    return tuple((f"*{point}",) for (point,) in around(*names))


_P, _C = TaskState.PROCESSED, TaskState.COMPENSATED
_BY_CALLBACK = frozenset(point for (point,) in CALLED_BACK)
_MAIL = {"mail": 1}
"""A confirmation that was sent is not undone."""

SCENARIOS = (
    Scenario(
        "order",
        scripts.ordered,
        _P,
        FULL,
        path=FORWARD,
        once=FORWARD,
        more=(
            *begun_later("", ("stock", "charge"), ("charge", "ship"), ("ship", "confirm")),
            *asked("stock", "charge", "ship", "confirm"),
            *behind("after:complete:stock", "find_answer", "results"),
        ),
    ),
    Scenario(
        "order swept",
        scripts.ordered,
        _P,
        FULL,
        more=(
            *behind("after:begin:stock", "recover", "request_cancel_workflow_execution"),
            *(("after:start_workflow_execution", *kills) for kills in behind("after:begin:stock", *TERMINATED)),
            *(("after:begin:stock", p) for (p,) in whoever(*SWEPT)),
        ),
        supervised=True,
    ),
    Scenario("order claimed", scripts.ordered_while_nobody_claims, _P, FULL, once=whoever("claim"), later=True),
    Scenario("order answered late", scripts.answered_late, _P, FULL, once=around("late_answer:stock")),
    Scenario("order not shipped", scripts.not_shipped, _P, FULL, once=around("fail:ship", "resubmit", "amend_record")),
    Scenario(
        "order declined",
        scripts.declined,
        _C,
        {},
        path=(*CLAIMED, *call("charge")[:4], *around("fail:charge", "undo_begin:charge"), *call("charge", "undo_")),
        once=around("fail:charge", "undo_begin:charge"),
    ),
    Scenario(
        "order cancelled",
        scripts.cancelled,
        _C,
        _MAIL,
        path=(*around("request_undo"), *CLAIMED_FOR_UNDO, *UNDO),
        firsts=frozenset(p for (p,) in around("request_undo")),
        once=(*around("request_undo"), *CLAIMED_FOR_UNDO, *UNDO),
        more=begun_later("undo_", ("ship", "charge"), ("charge", "stock")),
        later=True,
    ),
    Scenario(
        "order cancelled before it began",
        scripts.cancelled_before_it_began,
        _C,
        {},
        once=around("undo_finish"),
        later=True,
    ),
    Scenario("undo run cancelled", scripts.undo_run_cancelled, _C, _MAIL, once=around("release"), later=True),
    Scenario("undo out of calls", scripts.out_of_undo_calls, _C, _MAIL, once=around("give_up:stock"), later=True),
    Scenario("undo refused", scripts.not_refunded, _C, _MAIL, once=around("undo_fail:charge"), later=True),
    Scenario(
        "undo repaired",
        scripts.repaired,
        _C,
        {**_MAIL, "payments": 1},
        once=around("repair_undo:charge"),
        later=True,
    ),
    Scenario(
        "machine",
        scripts.made,
        _P,
        {"cloud": 4},
        path=(*MADE, *call("name")[4:]),
        firsts=_BY_CALLBACK,
        once=(*MADE, *call("name")[4:]),
        more=(*begun_later("", ("machine", "name")), *asked("address", "disk", "name")),
    ),
    Scenario(
        "machine whose name is taken",
        scripts.name_taken,
        _C,
        {},
        path=(*MADE, *around("fail:name"), *UNMADE),
        firsts=_BY_CALLBACK,
        once=(*around("fail:name"), *UNMADE),
        more=tuple(
            (first, "|".join(f"{when}:undo_begin:{step}" for step in ("disk", "address")))
            for first in ("after:undo_complete:machine", "after:undo_complete:disk|after:undo_complete:address")
            for when in ("before", "after")
        ),
    ),
    Scenario(
        "service out of calls",
        scripts.out_of_calls,
        _P,
        FULL,
        once=(*around("give_up:stock", "breaker_failed", "breaker_succeeded"), *whoever("breaker_lease")),
    ),
    Scenario("breaker forced", scripts.breaker_forced, _P, FULL, once=whoever("breaker_force")),
    Scenario(
        "submitter",
        scripts.submitted,
        _P,
        FULL,
        once=around("admit", "create_record", "confirm"),
    ),
    Scenario(
        "submission abandoned",
        scripts.abandoned,
        _P,
        FULL,
        more=(
            *behind("after:admit", "abandon_record", "remove_unconfirmed"),
            *behind("after:create_record", "abandon_record", "confirm"),
        ),
    ),
    Scenario("record lost", scripts.record_lost, _P, FULL, once=around("not_started"), later=True),
    Scenario("submission contradicted", scripts.contradicted, _P, FULL, once=around("dead_letter")),
    Scenario(
        "worker drained", scripts.drained, _P, FULL, once=(*around("release:stock"), *whoever("count_held", "leave"))
    ),
    Scenario(
        "worker starts",
        scripts.worker_starts,
        _P,
        FULL,
        once=whoever("publish_definition", "find_open_services", "next_due", "unconfirmed", *SCHEDULED),
        later=True,
    ),
    Scenario(
        "unsupervised",
        scripts.unsupervised,
        _P,
        FULL,
        once=whoever("last_sweep_age", "alert_missed_sweep"),
        later=True,
        supervised=True,
    ),
)
