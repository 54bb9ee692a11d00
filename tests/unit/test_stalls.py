"""The beat of a worker's event loop."""

from __future__ import annotations

import pytest

from activities.stalls import StallDetector


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.demand("C4")
@pytest.mark.parametrize("beat_first", [True, False], ids=["the beat comes first", "the task comes first"])
def test_task_begun_behind_a_stop_may_be_as_old(beat_first: bool) -> None:
    clock = Clock()
    stalls = StallDetector(clock)
    clock.now += 25
    if beat_first:
        stalls.beat()
    assert stalls.age_s() == pytest.approx(24.8)
    clock.now += 1
    assert stalls.age_s() == pytest.approx(24.8), "another one that was given to it meanwhile"


@pytest.mark.demand("C4")
def test_task_that_begins_later_or_on_a_busy_machine_is_new() -> None:
    clock = Clock()
    stalls = StallDetector(clock)
    clock.now += 1.1
    assert stalls.age_s() == 0
    clock.now += 25
    stalls.beat()
    for _ in range(15):
        clock.now += 0.2
        stalls.beat()
    assert stalls.age_s() == 0
