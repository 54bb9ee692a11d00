"""The crash matrix in the test suite: every single kill, and as many pairs of kills as there is time for."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.matrix.cases import pairs, singles
from chaos.matrix.runner import matrix

SEED, PAIRS = 1, 40


@pytest.mark.failure(1, 35)
@pytest.mark.timeout(900)
@pytest.mark.demand("B3", "B8", "B9", "C2", "C13", "F11", "H9")
async def test_task_ends_right_after_a_crash_at_any_point(tmp_path: Path) -> None:
    cases = [*singles(), *pairs(PAIRS, SEED)]
    report = await matrix(cases, SEED, tmp_path)
    print("\n".join(report.lines()))
    assert report.violations == []
    assert report.unfired == []
    assert report.unkilled == []
    assert sum(report.kills.values()) >= 100
