"""What the Supervisor asks for when a task has expired: one pure function (D5 to D7).

nothing was begun            ─► Pending again, nothing counted; after a back-off, if it was not the first time
below the threshold          ─► Pending again after a back-off
threshold passed             ─► an extended wait, if the policy has one left; then undo, or Error
budget spent                 ─► undo, or Error (no wait brings calls back)
undo, below its threshold    ─► Compensating again after a back-off
undo, threshold or budget    ─► CompensationFailed
too many attempts            ─► Error, or CompensationFailed

An expiry that spans an outage of supervision or of the store counts no failure, but it is one of the attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from domain.definition import UNDO_THRESHOLD
from domain.states import StepState, TaskState
from store.supervision import ExpiredStep, ExpiredTask, Recovery

_UNKNOWN_POLICIES: dict[str, Any] = {
    "threshold": 3,
    "backoff_s": [1.0, 2.0, 300.0],
    "extended_wait_s": None,
    "extended_waits": 0,
    "on_spent": "error",
    "most_attempts": 100,
}
"""For a definition whose policies are not on record: try again, and in the end let a person look."""


@dataclass(frozen=True)
class _Case:
    task: ExpiredTask
    policies: dict[str, Any]
    failed: list[ExpiredStep]
    counts: bool

    def answer(self, target: TaskState, delay_s: float, cause: str) -> Recovery:
        return Recovery(
            task_id=self.task.task_id,
            locked_by=self.task.locked_by,
            complete_by=self.task.complete_by,
            last_event=self.task.last_event,
            target=target,
            delay_s=delay_s,
            failed_steps=[s.name for s in self.failed] if self.counts else [],
            cause=cause,
        )

    @property
    def failures(self) -> int:
        """The most failures in a row that any failed step has now, with this one if it counts."""
        return max((s.failure_count for s in self.failed), default=0) + (1 if self.counts else 0)

    def backoff_s(self, failures: int) -> float:
        first, factor, most = self.policies["backoff_s"]
        try:
            return float(min(most, first * factor ** max(0, min(failures, 64) - 1)))
        except OverflowError:
            return float(most)


def decide(task: ExpiredTask, *, counts: bool = True) -> Recovery:
    """What to ask for. `counts`: False where supervision itself was out, so that no failure is counted (D1)."""
    counts = counts and not task.store_restarted
    undo = task.state is TaskState.COMPENSATING
    at_work = StepState.UNDOING if undo else StepState.RUNNING
    begun = [s for s in task.steps if _is_at_work(s, at_work)]
    failed = [s for s in begun if s.overdue or s.gave_up]
    case = _Case(task, {**_UNKNOWN_POLICIES, **(task.policies or {})}, failed, counts and bool(failed))
    back = TaskState.COMPENSATING if undo else TaskState.PENDING
    if task.expiries + 1 >= case.policies["most_attempts"]:
        return _stop(case, f"{task.expiries + 1} attempts have expired, which is the bound")
    if not failed:
        what = "a step's deadline had not come" if begun else "no step was begun"
        delay_s = case.backoff_s(task.expiries) if task.expiries else 0.0  # again and again: perhaps all is overloaded
        return case.answer(back, delay_s, f"the attempt ended, {what}")
    names = ", ".join(s.name for s in failed)
    cause = f"step {names} {'was not undone' if undo else 'did not complete'} in time, or its calls were spent"
    cause += "" if counts else "; not counted, since the store or the Supervisor was out meanwhile"
    if min(_budget_left(s) for s in failed) < 1:
        return _spent(case, f"{cause}; its budget of calls is spent")
    if case.failures <= (UNDO_THRESHOLD if undo else case.policies["threshold"]):
        return case.answer(back, case.backoff_s(case.failures), cause)
    if not undo and case.failures <= case.policies["threshold"] + case.policies["extended_waits"]:
        return case.answer(back, float(case.policies["extended_wait_s"]), f"{cause}; an extended wait")
    return _spent(case, f"{cause}; failed {case.failures} times in a row")


def _is_at_work(step: ExpiredStep, at_work: StepState) -> bool:
    """Whether this attempt began it, or could not for want of calls, whichever attempt began it before."""
    if step.state is StepState.UNDO_FAILED:
        return at_work is StepState.UNDOING and step.gave_up and _budget_left(step) < 1
    return step.state is at_work and (step.current or _budget_left(step) < 1)


def _budget_left(step: ExpiredStep) -> int:
    """Calls left."""
    undo = step.state in (StepState.UNDOING, StepState.UNDO_FAILED)
    return step.undo_budget_left if undo else step.budget_left


def _spent(case: _Case, cause: str) -> Recovery:
    if case.task.state is TaskState.PROCESSING and case.policies["on_spent"] == "undo" and not case.task.past_pivot:
        return case.answer(TaskState.COMPENSATING, 0.0, cause)
    return _stop(case, cause)


def _stop(case: _Case, cause: str) -> Recovery:
    undo = case.task.state is TaskState.COMPENSATING
    return case.answer(TaskState.COMPENSATION_FAILED if undo else TaskState.ERROR, 0.0, cause)
