"""What the Supervisor asks for when a task has expired: one pure function.

too many attempts in vain    ─► Error, or CompensationFailed
nothing was begun            ─► back again, nothing counted; after a back-off, if it was not the first time
budget spent                 ─► undo, or Error (no wait brings calls back); an undo: CompensationFailed
below the threshold          ─► back again after a back-off
threshold passed             ─► an extended wait, if the policy has one left
none left                    ─► undo, or Error; an undo: CompensationFailed

Back again is Pending, or Compensating. An expiry that spans an outage of supervision or of the store is no failure and
no attempt, and costs no calls: what its steps had reserved is granted anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from domain.states import StepState, TaskState
from domain.worst_case import UNDO_THRESHOLD
from store.supervision import ExpiredStep, ExpiredTask, Recovery

_UNKNOWN_POLICIES: dict[str, Any] = {
    "threshold": 3,
    "backoff_s": [1.0, 2.0, 300.0],
    "extended_wait_s": None,
    "extended_waits": 0,
    "on_spent": "error",
    "most_attempts": 1_000,
}
"""For a definition whose policies are not on record: try again, and in the end let a person look."""


def decide(task: ExpiredTask) -> Recovery:
    """What to ask for: the answer of the first row of the table that fits."""
    case = _Case(task)
    return next(answer(case) for fits, answer in _TABLE if fits(case))


@dataclass(frozen=True)
class _Case:
    """An expired task, and what the rows of the table ask about it."""

    task: ExpiredTask

    @cached_property
    def policies(self) -> dict[str, Any]:
        return {**_UNKNOWN_POLICIES, **(self.task.policies or {})}

    @property
    def undo(self) -> bool:
        return self.task.state is TaskState.COMPENSATING

    @cached_property
    def begun(self) -> list[ExpiredStep]:
        """Steps that this attempt began, or could not for want of calls, whichever attempt began them before."""
        return [s for s in self.task.steps if self._is_at_work(s)]

    @cached_property
    def failed(self) -> list[ExpiredStep]:
        return [s for s in self.begun if s.overdue or s.gave_up]

    @property
    def failures(self) -> int:
        """The most failures in a row that any failed step has now, with this one if it counts."""
        return max((s.failure_count for s in self.failed), default=0) + (0 if self.task.outage else 1)

    @property
    def threshold(self) -> int:
        return UNDO_THRESHOLD if self.undo else int(self.policies["threshold"])

    @property
    def waits(self) -> int:
        return 0 if self.undo else int(self.policies["extended_waits"])

    def calls_left(self, step: ExpiredStep) -> int:
        """Calls that the next attempt has, with those that an outage gives back."""
        undo = step.state in (StepState.UNDOING, StepState.UNDO_FAILED)
        left = step.undo_budget_left if undo else step.budget_left
        return left + (step.reserved if self.task.outage and step.current else 0)

    def _is_at_work(self, step: ExpiredStep) -> bool:
        if step.state is StepState.UNDO_FAILED:
            return self.undo and step.gave_up and not self.calls_left(step)
        at_work = StepState.UNDOING if self.undo else StepState.RUNNING
        return step.state is at_work and (step.current or not self.calls_left(step))

    def backoff_s(self, failures: int, *, most_at_least_s: float = 0.0) -> float:
        first, factor, most = self.policies["backoff_s"]
        most = max(most, most_at_least_s)
        try:
            return float(min(most, first * factor ** max(0, min(failures, 64) - 1)))
        except OverflowError:
            return float(most)

    @property
    def what_happened(self) -> str:
        if not self.failed:
            what = "a step's deadline had not come" if self.begun else "no step was begun"
            return f"the attempt ended, {what}"
        late = [s.name for s in self.failed if not s.gave_up]
        spent = [s.name for s in self.failed if s.gave_up]
        what, whose = ("was not undone", "the undo of step") if self.undo else ("did not complete", "step")
        causes = [f"step {', '.join(late)} {what} in time"] if late else []
        causes += [f"{whose} {', '.join(spent)} spent its calls"] if spent else []
        uncounted = "; not counted, since the store or the Supervisor was out meanwhile" if self.task.outage else ""
        return " and ".join(causes) + uncounted

    def answer(self, target: TaskState, delay_s: float, more: str = "") -> Recovery:
        return Recovery(
            task_id=self.task.task_id,
            locked_by=self.task.locked_by,
            complete_by=self.task.complete_by,
            last_event=self.task.last_event,
            target=target,
            delay_s=delay_s,
            failed_steps=[] if self.task.outage else [s.name for s in self.failed],
            outage=self.task.outage,
            cause="; ".join(filter(None, (self.what_happened, more))),
        )

    def back(self, delay_s: float, more: str = "") -> Recovery:
        return self.answer(TaskState.COMPENSATING if self.undo else TaskState.PENDING, delay_s, more)

    def stop(self, why: str) -> Recovery:
        return self.answer(TaskState.COMPENSATION_FAILED if self.undo else TaskState.ERROR, 0.0, why)

    def spent(self, why: str) -> Recovery:
        if self.undo or self.policies["on_spent"] != "undo" or self.task.past_pivot:
            return self.stop(why)
        return self.answer(TaskState.COMPENSATING, 0.0, why)


_TABLE: tuple[tuple[Callable[[_Case], bool], Callable[[_Case], Recovery]], ...] = (
    (
        lambda c: not c.task.outage and c.task.expiries + 1 >= c.policies["most_attempts"],
        lambda c: c.stop(f"{c.task.expiries + 1} attempts in a row have expired without progress, which is the bound"),
    ),
    # again and again: perhaps all is overloaded, or a release is bad, and a person has to come
    (
        lambda c: not c.failed,
        lambda c: c.back(c.backoff_s(c.task.expiries, most_at_least_s=300.0) if c.task.expiries else 0.0),
    ),
    (
        lambda c: min(map(c.calls_left, c.failed)) < 1,
        lambda c: c.spent("its budget of calls is spent"),
    ),
    (lambda c: c.task.outage or c.failures <= c.threshold, lambda c: c.back(c.backoff_s(c.failures))),
    (
        lambda c: c.failures <= c.threshold + c.waits,
        lambda c: c.back(float(c.policies["extended_wait_s"]), "an extended wait"),
    ),
    (lambda _: True, lambda c: c.spent(f"failed {c.failures} times in a row")),
)
