"""A short run with faults: every kind strikes and is seen, and every invariant holds afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.checks import Violation
from chaos.figures import Figures, Guards, missing
from chaos.run import SHORT, Run
from chaos.verdict import Code, Verdict


@pytest.mark.failure(1, 5)
@pytest.mark.demand("H9", "H10", "H12")
@pytest.mark.timeout(900)
async def test_every_invariant_stands_after_every_kind_of_fault(tmp_path: Path) -> None:
    report = await Run(replace(SHORT, seed=7), print).carry_out(tmp_path)
    assert report.verdict.code is Code.PASSED, "\n".join(report.verdict.lines())


def test_run_in_which_nothing_happened_is_invalid_and_not_passed() -> None:
    gaps = list(missing(Figures(kinds={"worker killed": (3, 0)}), Guards(tasks=1, faults=1, seen=1)))
    assert "worker killed: done 3 times, seen 0 times, at least 1 were wanted" in gaps
    assert Verdict(Figures(), [], gaps).code is Code.INVALID


def test_violation_weighs_more_than_what_is_missing() -> None:
    assert (
        Verdict(Figures(), [Violation("money_adds_up", "*", "it does not")], ["no late answer"]).code is Code.VIOLATED
    )
