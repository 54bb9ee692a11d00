"""Mistakes at the boundaries between steps: who may write, and what."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from activities.bookkeeping import Bookkeeping
from chaos.planted.bug import Bug, without
from chaos.planted.patches import Behaviour, Statement
from domain.attempts import StepWork, WriteResult
from domain.messages import Json
from runtime.starts import RunStarter, Started
from store.claims import Hold
from store.steps import Forward, Steps
from workflows.attempt import Attempt

_HELD = "held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)"


def _held_where(rule: str) -> Statement:
    """A boundary whose guard asks no more than this of who holds the task."""
    return Statement("advance", _HELD, f"(SELECT * FROM task WHERE task_id = %(task_id)s{rule}) AS t")  # noqa: S608 (ours)


def beginning_side_by_side(real: Any) -> Any:
    def _ready(self: Any, running: dict[str, Any]) -> list[Any]:
        early = [s for s in self._definition.steps if s.name == "charge"]
        early = [s for s in early if s.name not in self._results and s.name not in running]
        return list(dict.fromkeys([*real(self, running), *early]))

    return _ready


def logging_undo_after_the_effect(real: Any) -> Any:
    intents: dict[tuple[str, str], Any] = {}

    async def advance(
        self: Any,
        hold: Any,
        *,
        done: str | None = None,
        result: Json | None = None,
        calls: int | None = None,
        begin: Any = None,
    ) -> Any:
        if begin and begin.undo:
            intents[hold.task_id, begin.step] = begin.undo
        report = await real(self, hold, done=done, result=result, calls=calls, begin=begin)
        if done and (undo := intents.pop((hold.task_id, done), None)):
            await self._steps._tasks.database.rows(_LOG, {"task_id": hold.task_id, "step": done, "action": undo.action})
        return report

    return advance


_LOG = """
INSERT INTO compensation (task_id, seq, step, action, request)
SELECT %(task_id)s, coalesce(max(seq), 0) + 1, %(step)s, %(action)s, '{}' FROM compensation WHERE task_id = %(task_id)s
RETURNING seq
"""


def adopting_any_run(_: Any) -> Any:
    async def _started_before(self: Any, claim: Any) -> Started:
        return Started(claim.task.task_id, claim.locked_by, None)

    return _started_before


def calling_beside_its_twin(real: Any) -> Any:
    async def _joined(self: Any, name: str, given: StepWork, do: Any, begun: Any) -> WriteResult:
        alone = name if name == "begin" else f"{name} {uuid4()}"
        return await real(self, alone, given, do, begun)  # type: ignore[no-any-return]

    return _joined


def knowing_the_attempt_only(_: Any) -> Any:
    def holds(self: Any, task: Any) -> bool:
        return bool(self.locked_by == task.locked_by)

    return holds


def dropping_it(_: Any) -> Any:
    async def note_late(self: Any, task_id: str, step: str, answer: Json, *, actor: str) -> None:
        return None

    return note_late


BOUNDARIES_BUGS = (
    Bug(
        "no_holder_guard",
        "a boundary is written by whoever knows the task's id",
        (
            _held_where(""),
            Statement("advance", "AND s.state = 'Running' AND s.epoch = held.epoch", "AND s.state = 'Running'"),
        ),
        ("order overtaken",),
        ("only_the_holder_moves_it",),
    ),
    Bug(
        "twin_does_not_join",
        "an activity that is run again while it lives makes a call of its own beside the one that is under way",
        (Behaviour(Bookkeeping, "_joined", calling_beside_its_twin),),
        ("errand run again beside itself",),
        ("living_run_begins_a_step_once",),
    ),
    Bug(
        "holder_without_run_id",
        "a run that was made by reset holds the task as well",
        (
            _held_where(" AND locked_by = %(locked_by)s"),
            Behaviour(Hold, "holds", knowing_the_attempt_only),
        ),
        ("order whose run is reset",),
        ("only_one_run_writes_for_an_attempt",),
    ),
    Bug(
        "nonce_not_asked",
        "whoever starts a run under the id of an attempt is believed",
        (
            _held_where(" AND locked_by = %(locked_by)s AND coalesce(run_id, %(run_id)s) = %(run_id)s"),
            Behaviour(Hold, "holds", knowing_the_attempt_only),
            Behaviour(RunStarter, "_started_before", adopting_any_run),
        ),
        ("order whose first run is forged",),
        ("bound_run_was_given_the_record",),
    ),
    Bug(
        "blind_retry_after_lost_commit",
        "a boundary that was not acknowledged is written again, without a look at what the row says",
        (
            Statement(
                "advance",
                "AND s.name = %(done)s AND s.state = 'Running' AND s.epoch",
                "AND s.name = %(done)s AND s.epoch",
            ),
        ),
        ("order whose commits are not acknowledged",),
        ("finished_work_is_not_repeated",),
    ),
    Bug(
        "terminal_overwritten_by_late_response",
        "an answer that comes late finishes the task, whatever became of it meanwhile",
        (
            Statement(
                "late_answer",
                "UPDATE task AS t SET",
                "UPDATE task AS t SET state = 'Processed', locked_by = NULL, run_id = NULL, complete_by = NULL,",
            ),
        ),
        ("order undone in mid-charge",),
        ("state_changes_are_legal",),
        without("task.guard_task", "task.check_transition"),
    ),
    Bug(
        "log_after_effect",
        "the undo of a step is logged once the step is done, not before it is begun",
        (
            Statement("advance", "WHERE %(undo_action)s::text IS NOT NULL", "WHERE false"),
            Behaviour(Forward, "advance", logging_undo_after_the_effect),
        ),
        ("order declined: after:claim",),
        ("undo_log_fits_the_steps",),
    ),
    Bug(
        "reservation_not_taken",
        "beginning a step looks at the budget, and takes nothing out of it",
        (
            Statement(
                "advance",
                "budget_left = s.budget_left - least(s.budget_left, %(allowance)s)",
                "budget_left = s.budget_left",
            ),
        ),
        ("order: after:claim",),
        ("budgets_are_not_overdrawn", "calls_stay_within_what_was_granted"),
        (
            "ALTER TABLE step DROP CONSTRAINT budget_is_not_overdrawn",
            "ALTER TABLE step ADD CONSTRAINT budget_is_not_overdrawn CHECK (budget_left BETWEEN 0 AND budget)",
        ),
    ),
    Bug(
        "budget_returned_on_crash",
        "what a dead attempt had reserved is given back, as if it had made no call",
        (
            Statement(
                "advance",
                "budget_left = s.budget_left - least(s.budget_left, %(allowance)s)",
                "budget_left = s.budget_left + s.reserved - least(s.budget_left, %(allowance)s)",
            ),
        ),
        ("service out of calls: before:give_up:stock",),
        ("calls_stay_within_what_was_granted",),
    ),
    Bug(
        "step_begun_before_its_time",
        "a step begins beside the one that it comes after",
        (Behaviour(Attempt, "_ready", beginning_side_by_side),),
        ("order: after:claim",),
        ("steps_begin_in_their_order",),
    ),
    Bug(
        "breaker_ignored",
        "a step begins although the breaker of its service is open",
        (
            Statement("advance", "AND NOT is_blocked(s.service, s.task_id)", ""),
            Statement(
                "claim", "OR NOT is_blocked(next_service(t.task_id, t.state = 'Compensating'), t.task_id)", "OR true"
            ),
        ),
        ("order whose service is out", "order whose next service is shut"),
        ("no_step_begins_at_an_open_breaker",),
    ),
    Bug(
        "late_answer_dropped",
        "an answer that came too late leaves no mark",
        (Behaviour(Steps, "note_late", dropping_it),),
        ("order answered late: before:late_answer:stock",),
        ("every_kill_comes",),
    ),
    Bug(
        "event_missing",
        "the last boundary writes no event",
        (Statement("advance", "FROM moved, held", "FROM moved, held WHERE moved.state <> 'Processed'"),),
        ("order: after:complete:confirm",),
        ("events_are_numbered_without_a_gap",),
        without("task.check_transition"),
    ),
    Bug(
        "release_counts_a_failure",
        "a task that is only given back is counted as one that failed",
        (
            Statement(
                "release", "locked_by = NULL, run_id", "failure_count = t.failure_count + 1, locked_by = NULL, run_id"
            ),
        ),
        ("undo run cancelled: after:release",),
        ("failures_are_counted_once",),
    ),
    Bug(
        "claim_without_epoch",
        "a claim takes the task and numbers no attempt",
        (Statement("claim", "t.epoch + 1", "t.epoch"),),
        ("order: after:complete:confirm",),
        ("epochs_rise_by_one_with_each_claim", "tokens_never_fall"),
        without("task.guard_task"),
    ),
)
