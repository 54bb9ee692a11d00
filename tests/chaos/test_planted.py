"""The checker's own proof, in small: bugs that are planted are seen, and each fits the code that it is planted in."""

from __future__ import annotations

import pytest

from audit.checks import ALL_TASKS_CHECKS, TASK_CHECKS
from chaos.planted.bug import CHAOS, Bug
from chaos.planted.bugs import BUGS, NOTHING, named
from chaos.planted.patches import Behaviour, Statement, Unplantable
from chaos.planted.run import show
from chaos.planted.tier import case_named

LISTED = {
    "no_fence",
    "no_barrier",
    "key_per_attempt",
    "forward_order_compensation",
    "retry_in_two_layers",
    "blind_retry_after_lost_commit",
    "wall_clock_in_worker",
    "count_without_condition",
    "cap_outside_the_transaction",
    "ack_before_commit",
    "swallow_compensation_failure",
    "terminal_overwritten_by_late_response",
    "no_expired_recheck",
    "dedupe_by_body",
    "log_after_effect",
}
"""What the list of failures names, at least."""

OF_TIERS = {"history_replays", "every_kill_comes", "living_run_begins_a_step_once", "undo_that_was_asked_for_is_done"}
"""What the chaos tier and the crash matrix add to the invariants of the audit."""

SHOWN = ("key_per_attempt", "no_barrier", "event_missing", "ack_before_commit")


@pytest.mark.parametrize("bug", BUGS, ids=[b.name for b in BUGS])
def test_bug_fits_what_it_is_planted_in(bug: Bug) -> None:
    assert bug.mistake
    assert bug.patches or bug.disarms
    for patch in bug.patches:
        patch.check()
    if bug.tier != CHAOS:
        assert all(case_named(name) for name in bug.tier)


def test_bug_is_shown_by_invariants_that_there_are() -> None:
    known = {c.__name__ for c in (*TASK_CHECKS, *ALL_TASKS_CHECKS)} | OF_TIERS
    assert {i for bug in BUGS for i in bug.shown_by} - known == set()
    assert all(bug.shown_by for bug in BUGS)


def test_every_listed_bug_is_planted_once() -> None:
    names = [bug.name for bug in BUGS]
    assert len(names) == len(set(names))
    assert LISTED - set(names) == set()


def test_patch_that_fits_nothing_fails() -> None:
    with pytest.raises(Unplantable, match=r"claim\.sql"):
        Statement("claim", "a text that is not there", "").check()
    with pytest.raises(Unplantable, match="no function"):
        Behaviour(Unplantable, "gone", lambda real: real).check()
    with pytest.raises(Unplantable, match="takes"):
        Behaviour(Statement, "edited", lambda _: lambda another: another).check()


@pytest.mark.demand("H10")
@pytest.mark.timeout(300)
async def test_planted_bugs_are_seen_and_runs_without_are_clean() -> None:
    showings = [showing async for showing in show([named(name) for name in SHOWN])]
    assert [s.bug for s in showings] == [NOTHING, *SHOWN]
    assert [s for s in showings if not s.is_well] == []
