"""Mistakes of the Supervisor."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from chaos.planted.bug import Bug, without
from chaos.planted.patches import Behaviour, Statement
from store.supervision import Supervision


def pausing_before_it_writes(real: Any) -> Any:
    async def recover(
        self: Any,
        decisions: Any,
        *,
        sweep: int | None = None,
        per_s: float = 20.0,
        ramp: timedelta = timedelta(seconds=10),
    ) -> Any:
        await asyncio.sleep(2)
        return await real(self, decisions, sweep=sweep, per_s=per_s, ramp=ramp)

    return recover


def recovering_twice(real: Any) -> Any:
    async def recover(
        self: Any,
        decisions: Any,
        *,
        sweep: int | None = None,
        per_s: float = 20.0,
        ramp: timedelta = timedelta(seconds=10),
    ) -> Any:
        evicted = await real(self, decisions, sweep=sweep, per_s=per_s, ramp=ramp)
        await real(self, decisions, sweep=sweep, per_s=per_s, ramp=ramp)
        return evicted

    return recover


SUPERVISION_BUGS = (
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
            Behaviour(Supervision, "recover", pausing_before_it_writes),
        ),
        ("order undone while it expires",),
        ("expiry_ends_the_hold_that_it_names",),
        without("task.guard_task", "event.guard_event"),
    ),
    Bug(
        "supervisor_settles_what_expired",
        "the Supervisor ends a task as done whose attempt has expired, instead of asking for the next one",
        (Statement("recover", "state = x.target,", "state = replace(x.target, 'Pending', 'Processed'),"),),
        ("order: after:call:charge",),
        ("state_changes_are_legal",),
        without("event.guard_event"),
    ),
    Bug(
        "supervisor_may_do_all",
        "the Supervisor's login was given the application's role, and an undo that expired is Compensated in its name",
        (
            Statement("recover", "state = x.target,", "state = replace(x.target, 'Compensating', 'Compensated'),"),
            Statement(
                "recover",
                "'expired', x.state, m.state, m.epoch, 'supervisor'",
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
            Behaviour(Supervision, "recover", recovering_twice),
        ),
        ("order that can't be confirmed",),
        ("step_failures_have_their_events",),
        without("step.check_step"),
    ),
    Bug(
        "alert_missing",
        "a task goes to Error, and nobody is told",
        (),
        ("order not shipped: after:fail:ship",),
        ("what_needs_a_person_has_an_alert",),
        disarms=without("event.alert_of_event"),
    ),
)
