"""The planted bugs: what people get wrong, how it is put in, and which invariant must show it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from activities import queued
from activities.bookkeeping import Bookkeeping
from activities.boundaries import Boundaries
from activities.call import Call
from activities.call_loop import Agents
from chaos.planted import behaviours as b
from chaos.planted.patches import Behaviour, Patch, Statement, put_in
from runtime.starts import RunStarter
from store.admission import Admission
from store.claims import Hold
from store.orders import Orders
from store.steps import Forward, Steps
from store.submission import SubmissionDesk
from store.supervision import Supervision
from workflows import queued_call
from workflows.attempt import Attempt
from workflows.undo_requests import Requests

NOTHING = "-"
"""In place of a bug's name: the same without one."""

CHAOS = "chaos"
"""In place of cases: the short run of the chaos tier, with other seeds until it is caught."""


@dataclass(frozen=True)
class Bug:
    """A mistake.

    Attributes:
        mistake: What somebody did, in a line. patches: How it is planted, in every process of a run.
        tier: Cases of the crash matrix, see `tier.py`; or `CHAOS`.
        shown_by: Invariants; or `every_kill_comes`, the matrix's guard, where a write is dropped that nobody else knows
            of. A run that reports none of them has missed it.
        by_submitter: It is one of submitters, which the chaos tier's own process is.
        disarms: SQL of the owner, in that run's database only: takes away what would refuse or mend the bug before
            anybody sees it, and puts it back afterwards.
    """

    name: str
    mistake: str
    patches: tuple[Patch, ...]
    tier: tuple[str, ...] | str
    shown_by: tuple[str, ...]
    disarms: tuple[str, ...] = ()
    by_submitter: bool = False


def _without(*guards: str) -> tuple[str, str]:
    """Statements that switch guards off, and on again; each as `table.trigger`."""
    named = [guard.split(".") for guard in guards]
    off, on = (
        [f"ALTER TABLE {table} {what} TRIGGER {trigger}" for table, trigger in named] for what in ("DISABLE", "ENABLE")
    )
    return "; ".join(off), "; ".join(on)


_HELD = "held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)"


def _held_where(rule: str) -> Statement:
    """A boundary whose guard asks no more than this of who holds the task."""
    return Statement("advance", _HELD, f"(SELECT * FROM task WHERE task_id = %(task_id)s{rule}) AS t")  # noqa: S608 (ours)


_FROM_COMPLETED = (
    "AND c.state IN ('Logged', 'Undoing', 'Failed')",
    "AND c.state IN ('Logged', 'Undoing', 'Failed') AND EXISTS (SELECT 1 FROM step AS k WHERE"
    " k.task_id = c.task_id AND k.name = c.step AND k.state IN ('Completed', 'Undoing', 'UndoFailed'))",
)

BUGS = (
    # --- calls ------------------------------------------------------------------------------------------------
    Bug(
        "no_fence",
        "every call carries the same fencing token, so that no service can tell a zombie's call",
        (Behaviour(Agents, "_call", b.with_token_of_first_attempt),),
        ("order: after:claim",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "no_barrier",
        "undo asks what is there and takes that back; what comes later finds no tombstone",
        (Behaviour(Call, "undo", b.undoing_only_what_is_there),),
        ("order undone in mid-charge",),
        ("compensated_has_no_effect",),
    ),
    Bug(
        "key_per_attempt",
        "the idempotency key is made anew by each attempt",
        (Behaviour(Agents, "_call", b.with_key_of_attempt),),
        ("order: after:call:charge",),
        ("effect_is_there_at_most_once",),
    ),
    Bug(
        "retry_in_two_layers",
        "the HTTP client retries by itself, below the loop that counts the budget",
        (Behaviour(Call, "_exchange", b.retrying_below_the_budget),),
        ("service out of calls: before:give_up:stock",),
        ("calls_stay_within_what_was_granted",),
    ),
    Bug(
        "question_not_counted",
        "asking what became of a key takes nothing out of the budget",
        (Behaviour(Call, "ask", b.asking_without_a_reservation),),
        ("order whose reply is lost",),
        ("calls_stay_within_what_was_granted",),
    ),
    Bug(
        "called_before_it_is_begun",
        "an inline step is called first, and its beginning written behind that",
        (Behaviour(Bookkeeping, "_call", b.calling_before_it_is_begun),),
        ("order whose reply is lost",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "silence_taken_for_success",
        "a call that got no good answer is taken for done",
        (Behaviour(Agents, "carry_out", b.taking_silence_for_success),),
        ("service out of calls: before:give_up:stock",),
        ("processed_has_every_effect",),
    ),
    Bug(
        "wall_clock_in_worker",
        "the deadline is an instant on the worker's own clock, which is an hour behind",
        (Behaviour(Agents, "_call", b.with_deadline_on_wall_clock),),
        ("order: after:claim",),
        ("no_call_has_more_time_than_its_step",),
    ),
    Bug(
        "time_from_the_command",
        "a queued Agent's time counts from when the command reached Temporal, not from the grant",
        (Behaviour(queued, "_left_s", b.counting_from_the_command),),
        ("order whose line to Temporal stalls",),
        ("calls_are_made_in_their_time",),
    ),
    Bug(
        "release_keeps_the_calls",
        "a step that nobody took is released without what it had reserved",
        (Statement("release", "greatest(0, s.reserved - %(sent)s::int)", "0"),),
        ("order whose queue nobody serves",),
        ("release_before_any_call_costs_nothing",),
    ),
    # --- boundaries -------------------------------------------------------------------------------------------
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
        (Behaviour(Bookkeeping, "_joined", b.calling_beside_its_twin),),
        ("errand run again beside itself",),
        ("living_run_begins_a_step_once",),
    ),
    Bug(
        "holder_without_run_id",
        "a run that was made by reset holds the task as well",
        (
            _held_where(" AND locked_by = %(locked_by)s"),
            Behaviour(Hold, "holds", b.knowing_the_attempt_only),
        ),
        ("order whose run is reset",),
        ("only_one_run_writes_for_an_attempt",),
    ),
    Bug(
        "nonce_not_asked",
        "whoever starts a run under the id of an attempt is believed",
        (
            _held_where(" AND locked_by = %(locked_by)s AND coalesce(run_id, %(run_id)s) = %(run_id)s"),
            Behaviour(Hold, "holds", b.knowing_the_attempt_only),
            Behaviour(RunStarter, "_started_before", b.adopting_any_run),
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
        _without("task.guard_task", "task.check_transition"),
    ),
    Bug(
        "log_after_effect",
        "the undo of a step is logged once the step is done, not before it is begun",
        (
            Statement("advance", "WHERE %(undo_action)s::text IS NOT NULL", "WHERE false"),
            Behaviour(Forward, "advance", b.logging_undo_after_the_effect),
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
        (Behaviour(Attempt, "_ready", b.beginning_side_by_side),),
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
        (Behaviour(Steps, "note_late", b.dropping_it),),
        ("order answered late: before:late_answer:stock",),
        ("every_kill_comes",),
    ),
    Bug(
        "event_missing",
        "the last boundary writes no event",
        (Statement("advance", "FROM moved, held", "FROM moved, held WHERE moved.state <> 'Processed'"),),
        ("order: after:complete:confirm",),
        ("events_are_numbered_without_a_gap",),
        _without("task.check_transition"),
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
        _without("task.guard_task"),
    ),
    # --- undo -------------------------------------------------------------------------------------------------
    Bug(
        "forward_order_compensation",
        "steps are undone in the order in which they were done",
        (
            Statement("snapshot", "ORDER BY c.seq DESC", "ORDER BY c.seq"),
            Statement("undo_advance", "ORDER BY c.seq DESC\n    LIMIT 1", "ORDER BY c.seq\n    LIMIT 1"),
        ),
        ("order cancelled: after:undo_complete:stock",),
        ("undo_runs_in_reverse", "ledgers_show_undo_in_reverse"),
    ),
    Bug(
        "swallow_compensation_failure",
        "an undo that was refused is logged, and passed over",
        (Behaviour(Boundaries, "_fail", b.swallowing_refused_undo),),
        ("undo refused for good",),
        ("compensated_has_no_effect", "money_adds_up"),
    ),
    Bug(
        "unknown_outcome_not_undone",
        "only steps that are Completed are undone",
        (Statement("snapshot", *_FROM_COMPLETED), Statement("undo_advance", *_FROM_COMPLETED)),
        ("order declined: after:claim",),
        ("compensated_is_undone",),
    ),
    # --- the Supervisor ---------------------------------------------------------------------------------------
    Bug(
        "count_without_condition",
        "every expiry is counted as a failure, whether a step had failed or not",
        (Statement("recover", "CASE WHEN jsonb_array_length(x.failed_steps) > 0 THEN 1 ELSE 0 END", "1"),),
        ("order cancelled: after:claim",),
        ("failures_are_counted_once",),
    ),
    Bug(
        "no_expired_recheck",
        "the Supervisor writes what it decided, without another look at who holds the task by then",
        (
            Statement(
                "recover",
                "t.locked_by = d.locked_by AND t.complete_by = d.complete_by AND t.last_event = d.last_event\n"
                "        AND t.complete_by <= clock_timestamp()",
                "t.locked_by IS NOT NULL",
            ),
            Behaviour(Supervision, "recover", b.pausing_before_it_writes),
        ),
        ("order undone while it expires",),
        ("expiry_ends_the_hold_that_it_names",),
        _without("task.guard_task", "event.guard_event"),
    ),
    Bug(
        "supervisor_settles_what_expired",
        "the Supervisor ends a task as done whose attempt has expired, instead of asking for the next one",
        (Statement("recover", "state = x.target,", "state = replace(x.target, 'Pending', 'Processed'),"),),
        ("order: after:call:charge",),
        ("state_changes_are_legal",),
        _without("event.guard_event"),
    ),
    Bug(
        "supervisor_may_do_all",
        "the Supervisor's login was given the application's role, and an undo that expired is Compensated in its name",
        (
            Statement("recover", "state = x.target,", "state = replace(x.target, 'Compensating', 'Compensated'),"),
            Statement(
                "recover",
                "'expired', x.state, m.state, m.epoch, %(actor)s",
                "CASE m.state WHEN 'Compensated' THEN 'compensated' ELSE 'released' END, x.state, m.state, m.epoch,"
                " x.locked_by",
            ),
        ),
        ("order cancelled: after:undo_call:charge",),
        ("compensated_is_undone", "compensated_has_no_effect"),
        ("GRANT scheduler_app TO sup", "REVOKE scheduler_app FROM sup"),
    ),
    Bug(
        "outage_counted_by_later_sweeps",
        "only the first sweep after an outage counts no failures; what a page more has room for waits for the next one",
        (Statement("expired", "o.outage_until > (", "o.id = %(sweep)s AND o.outage_until > ("),),
        ("orders that expire while nobody sweeps",),
        ("outage_counts_no_failure",),
    ),
    Bug(
        "second_sweep_counts_twice",
        "a page that is carried out again counts the failures of its steps again",
        (
            Statement(
                "recover",
                "FROM expired AS x\n    WHERE s.task_id = x.task_id AND",
                "FROM decision AS x\n    WHERE s.task_id = x.task_id AND",
            ),
            Behaviour(Supervision, "recover", b.recovering_twice),
        ),
        ("order that can't be confirmed",),
        ("step_failures_have_their_events",),
        _without("step.check_step"),
    ),
    Bug(
        "alert_missing",
        "a task goes to Error, and nobody is told",
        (),
        ("order not shipped: after:fail:ship",),
        ("what_needs_a_person_has_an_alert",),
        disarms=_without("event.alert_of_event"),
    ),
    # --- submission -------------------------------------------------------------------------------------------
    Bug(
        "ack_before_commit",
        "the submission is acknowledged, and its business record written and confirmed behind that",
        (
            Behaviour(Orders, "create", b.creating_behind_the_acknowledgement),
            Behaviour(Admission, "confirm", b.confirming_behind_the_acknowledgement),
        ),
        ("submitter: before:admit",),
        ("acknowledged_task_is_there", "acknowledged_task_is_whole"),
    ),
    Bug(
        "dedupe_by_body",
        "a submission with a content that was seen before is taken for a repetition",
        (Behaviour(SubmissionDesk, "submit", b.taking_the_same_content_for_the_same_task),),
        ("submitter: before:admit", "submitter: before:create_record"),
        ("acknowledged_task_is_there",),
    ),
    Bug(
        "last_writer_wins",
        "a submission that contradicts the record overwrites it",
        (Behaviour(SubmissionDesk, "_dead_letter", b.letting_the_last_writer_win),),
        ("order contradicted afterwards",),
        ("begun_task_has_its_business_record",),
    ),
    Bug(
        "cap_outside_the_transaction",
        "the caps are looked at first, and the task is inserted afterwards",
        (Behaviour(Admission, "admit", b.counting_before_the_insert),),
        CHAOS,
        ("admission_caps_held",),
        by_submitter=True,
    ),
    # --- Temporal ---------------------------------------------------------------------------------------------
    Bug(
        "signal_swallowed",
        "an attempt that is asked for undo by a signal does not pass it on",
        (Behaviour(Requests, "hand_on", b.swallowing_requests),),
        CHAOS,
        ("undo_that_was_asked_for_is_done",),
    ),
    Bug(
        "changed_without_a_version",
        "the workflow's commands were changed while its runs are open",
        (Behaviour(queued_call, "queued_options", b.naming_activities_anew),),
        CHAOS,
        ("history_replays",),
    ),
)


def named(name: str) -> Bug:
    """The bug of that name; KeyError if there is none."""
    return {bug.name: bug for bug in BUGS}[name]


def planted() -> Bug | None:
    """The bug that this process is asked to have, by `PLANT`."""
    return named(name) if (name := os.environ.get("PLANT")) else None


def plant() -> None:
    """Put that bug into this process, for good; nothing, if it is not asked for."""
    if bug := planted():
        put_in(bug.patches)
