"""What may happen next to a task: each function draws one write out of those that somebody may come up with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from hypothesis import strategies as st

from domain.states import StepState, TaskState, UndoState
from store.claims import Hold
from tests.property.model import Write
from tests.property.model.task import Task
from tests.property.system import LONG

Draw = Callable[[st.SearchStrategy[Any]], Any]
_CALLS = st.sampled_from([0, 2, 9, None])
_DELAYS = st.sampled_from([0.0, LONG.total_seconds()])


def next_of_run(task: Task, hold: Hold, *, calls: int | None = 1, goes_on: bool = True) -> Write:
    """What a run writes that meets no fault: one boundary after the other."""
    done = next(iter(task.at_work), None)
    if task.state is TaskState.COMPENSATING:
        left = [e.step for e in reversed(task.log) if e.state.is_open and e.step != done]
        begin = left[0] if left and (goes_on or not done) else None
        return Write("undo_advance", {"hold": hold, "done": done, "calls": calls if done else None, "begin": begin})
    if done is None:
        return Write("advance", {"hold": hold, "begin": task.ready[0]})
    then = task.definition.follower(task.definition.step(done)) if goes_on else None
    result = {"of": done, "number": len(task.events)}
    terms = {"done": done, "result": result, "calls": calls, "begin": then.name if then else None}
    return Write("advance", {"hold": hold, **terms})


def any_of_run(draw: Draw, task: Task, hold: Hold) -> Write:
    """What a run may write otherwise: again, too much, too little, or that it can't go on."""
    undo = task.state is TaskState.COMPENSATING
    step = draw(st.sampled_from(task.at_work)) if task.at_work else None
    kinds: dict[str, Callable[[], Write]] = {
        "boundary": lambda: next_of_run(task, hold, calls=draw(_CALLS), goes_on=draw(st.booleans())),
        "begin": lambda: _begin_undo(task, hold) if undo else _begin(draw, task, hold),
        "release": lambda: _release(draw, hold, step),
    }
    if step is not None:
        kinds["fail"] = lambda: _undo_fail(hold, step) if undo else _fail(draw, hold, step)
        kinds["give_up"] = lambda: Write("give_up", {"hold": hold, "step": step})
    return kinds[draw(st.sampled_from([*kinds]))]()


def of_dispatcher(draw: Draw, task: Task) -> Write:
    """A claim; of what is held, to give it back, as one that was refused or otherwise; or the housekeeper comes by."""
    kind = draw(st.sampled_from(["claim", "tidy"] + ["not_started"] * task.held))
    if kind == "not_started":
        most = draw(st.sampled_from([None, 2, 3]))
        return Write(kind, {"hold": task.started, "delay_s": draw(_DELAYS), "most": most})
    return Write(kind, {})


def of_person(draw: Draw, task: Task, attempts: Collection[str]) -> Write:
    """A request for undo, by whoever or on behalf of a run; a resubmission; a repair of the compensation log."""
    kinds = ["request_undo"] + ["resubmit", "resubmit"] * (task.state is TaskState.ERROR)
    broken_undo = task.state in (TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED) and task.log
    kind = draw(st.sampled_from([*kinds, "repair_undo", "repair_undo"] if broken_undo else kinds))
    if kind == "request_undo":
        holder = draw(st.sampled_from([None, *attempts]))
        definition = draw(st.sampled_from([None, task.definition.name, "another"]))
        return Write(kind, {"holder": holder, "definition": definition})
    if kind == "repair_undo":
        step = draw(st.sampled_from([e.step for e in task.log]))
        return Write(kind, {"step": step, "to": draw(st.sampled_from([UndoState.SKIPPED, UndoState.CLOSED_BY_HAND]))})
    return Write(kind, {})


def of_others(draw: Draw, task: Task, attempts: Collection[str]) -> Write:
    """A submission of the same id, a breaker that opens or closes, an answer that comes too late."""
    kind = draw(st.sampled_from(["submit", "breaker"] + ["late_answer"] * bool(attempts)))
    if kind == "submit":
        return Write(kind, {"same": draw(st.sampled_from([True, True, False]))})
    if kind == "late_answer":
        actor, step = draw(st.sampled_from([*attempts])), draw(st.sampled_from([*task.steps]))
        return Write(kind, {"actor": actor, "step": step})
    services = sorted({action.partition(".")[0] for s in task.definition.steps for action in s.actions})
    service = draw(st.sampled_from(sorted(task.broken) or services))
    return Write(kind, {"service": service, "is_open": not task.broken})


def of_time(draw: Draw, task: Task) -> Write:
    """Some deadline passes: that of a step at work, if there is one, and that of any others."""
    begun = [n for n, s in task.steps.items() if s.state is not StepState.NOT_STARTED]
    passed = draw(st.sets(st.sampled_from(begun))) if begun else set()
    if task.at_work:
        passed.add(draw(st.sampled_from(task.at_work)))
    return Write("time_passes", {"steps": sorted(passed)})


def _begin(draw: Draw, task: Task, hold: Hold) -> Write:
    return Write("advance", {"hold": hold, "begin": draw(st.sampled_from(task.ready))})


def _begin_undo(task: Task, hold: Hold) -> Write:
    return Write("undo_advance", {"hold": hold, "begin": task.next_undo})


def _fail(draw: Draw, hold: Hold, step: str) -> Write:
    unknown, then = draw(st.sampled_from([False, True, None])), draw(st.sampled_from(["error", "undo"]))
    return Write("fail", {"hold": hold, "step": step, "unknown": unknown, "then": then})


def _undo_fail(hold: Hold, step: str) -> Write:
    return Write("undo_fail", {"hold": hold, "step": step})


def _release(draw: Draw, hold: Hold, step: str | None) -> Write:
    return Write(
        "release", {"hold": hold, "step": step, "sent": draw(st.none() | st.integers(0, 4)), "delay_s": draw(_DELAYS)}
    )
