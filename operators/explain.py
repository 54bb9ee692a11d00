"""What happens next to a task, in one sentence: who moves it, when, or which command a person has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from domain.faults import KEY_FORGOTTEN
from domain.states import EventKind, TaskState
from operators.calls import has_unknown_outcome, is_past_pivot
from operators.services import next_probe
from operators.times import duration, instant
from operators.undo_log import left_to_undo, skipped
from store.admission import GONE
from store.reads import Reads, TaskPage
from store.rows import ServiceRow, Task


@dataclass(frozen=True)
class Explanation:
    """All that is on record about a task, and what happens next to it, in a sentence."""

    page: TaskPage
    next: str


async def explain(reads: Reads, task_id: str, sweep_interval: timedelta) -> Explanation:
    """Look a task up, and say what happens next to it.

    Raises:
        NotFound: There is no such task.
    """
    page = await reads.page(task_id)
    return Explanation(
        page,
        what_happens_next(page, has_live_worker=await _has_worker(reads, page.task), sweep_interval=sweep_interval),
    )


def what_happens_next(page: TaskPage, *, has_live_worker: bool, sweep_interval: timedelta) -> str:
    """The sentence. `has_live_worker`: whether a worker that has the task's definition has shown itself lately."""
    task = page.task
    ask = f"python starter.py compensate {task.task_id} --reason TEXT"
    past_pivot = is_past_pivot(page.steps)
    match task.state:
        case TaskState.PENDING if not task.confirmed:
            text = "its submission is not finished: the next delivery finishes it, or the housekeeper looks after it"
        case TaskState.PENDING:
            text = _unheld(page, "claimable", has_live_worker)
        case TaskState.COMPENSATING if task.locked_by is None:
            text = _stalled(page) + _unheld(page, "its undo is claimable", has_live_worker)
        case TaskState.PROCESSING | TaskState.COMPENSATING:
            text = _stalled(page) + _held(page, sweep_interval)
        case TaskState.PROCESSED:
            text = "nothing: it is done" + (", and past its pivot" if past_pivot else f"; `{ask}` would undo it")
        case TaskState.COMPENSATED:
            text = "nothing: it is undone"
        case TaskState.ERROR:
            text = f"waits for a person: {_ways_on(page, '' if past_pivot else f', or `{ask}`')}"
        case TaskState.COMPENSATION_FAILED:
            text = f"waits for a person: {_repairs(page, ask)}"
        case _ as never:
            assert_never(never)
    return text


async def _has_worker(reads: Reads, task: Task) -> bool:
    return any(
        (row.name, row.version) == (task.definition, task.version) and since is not None and since < GONE
        for row, since in await reads.definitions()
    )


def _ways_on(page: TaskPage, undo: str) -> str:
    """What a person may do about a task in Error."""
    again = f"python starter.py resubmit {page.task.task_id}"
    unknown = next((s for s in page.steps if has_unknown_outcome(s)), None)
    if unknown is None:
        return f"`{again}`{undo}"
    call, word = f"a call of step {unknown.name}", f"--no-effect {unknown.name} --evidence TEXT --reason TEXT"
    if (unknown.error or {}).get("code") == KEY_FORGOTTEN:
        return f"its service no longer knows of {call}; look there, and if it had no effect, `{again} {word}`{undo}"
    return f"`{again}`{undo}; {call} may have had its effect: where it is seen that it had none, `{again} {word}`"


def _stalled(page: TaskPage) -> str:
    """Whether the Supervisor has found that the undo does not finish."""
    found = any(a.kind == "undo_stalled" and a.raised_at > page.task.state_since for a in page.alerts)
    return "its undo has stalled; " if found else ""


def _unheld(page: TaskPage, what: str, has_live_worker: bool) -> str:
    task, wait = page.task, page.task.not_before - page.now
    when = f"at {instant(task.not_before)} (in {duration(wait)})" if wait > timedelta(0) else "now"
    who = "by the next worker with a free slot" if has_live_worker else "but no live worker has its definition"
    if page.blocked_by is not None:
        return _blocked(page.blocked_by, page)
    return f"{what} {when}, {who}{_why_later(page) if wait > timedelta(0) else ''}"


def _blocked(service: ServiceRow, page: TaskPage) -> str:
    waits = f"waits for service {service.name}"
    if service.forced == "open":
        leave = f"`python starter.py services {service.name} --auto --reason TEXT`"
        return f"{waits}: {service.forced_by} has opened its breaker ({service.forced_reason}); {leave} ends that"
    return f"{waits}: its breaker is open ({service.cause}), next probe {next_probe(service, page.now)}"


def _why_later(page: TaskPage) -> str:
    """Why it waits: its last attempt gave it back; an undo, as only time keeps a late original out."""
    if page.task.state is not TaskState.COMPENSATING:
        last = page.events[-1]
        return f": {last.detail['cause']}" if last.kind is EventKind.RELEASED else ""
    for entry in page.undo_log:
        if entry.state.is_open and entry.quarantined_until and entry.quarantined_until > page.now:
            return f": step {entry.step} is in quarantine, and is undone once more then"
    late = [s.name for s in page.steps if s.quarantine_s is not None and s.complete_by and s.complete_by > page.now]
    return f": until then a call of step {', '.join(late)} may still be on its way" if late else ""


def _repairs(page: TaskPage, ask: str) -> str:
    """What a person may do about an undo that failed."""
    repair = f"python starter.py repair {page.task.task_id}"
    by_hand = "--done-by-hand --evidence TEXT --reason TEXT"
    if left := left_to_undo(page.undo_log):
        words = f"once the cause is gone, `{ask}` undoes what is left ({', '.join(left)}); or "
        if any((e.error or {}).get("code") == KEY_FORGOTTEN for e in page.undo_log if e.step == left[0]):
            words = f"step {left[0]} is too old to be undone by its key; undo it at its service, and "
        return words + f"`{repair} {left[0]} {by_hand}`, or `{repair} {left[0]} --skip --reason TEXT`"
    steps = skipped(page.undo_log)
    if not steps:
        return f"nothing is left to undo; `{ask}` ends it"
    return f"step {', '.join(steps)} was skipped; `{ask}` undoes it, or `{repair} {steps[0]} {by_hand}`"


def _held(page: TaskPage, sweep_interval: timedelta) -> str:
    task = page.task
    if task.complete_by is None:
        raise ValueError(f"task {task.task_id} is held and has no deadline")
    left = task.complete_by - page.now
    recovery = f"the Supervisor recovers it within one sweep ({duration(sweep_interval)})"
    if left > timedelta(0):
        return f"held by {task.locked_by} until {instant(task.complete_by)} (for {duration(left)}), then {recovery}"
    return f"held by {task.locked_by}, overdue for {duration(-left)}: {recovery}"
