"""What a Schedule of one release starts, a worker of another understands."""

from __future__ import annotations

import pytest

from domain.attempts import RunInput
from supervisor.activities import PageRequest, SweepSettings


@pytest.mark.failure(87)
@pytest.mark.demand("H6")
def test_sweep_terms_of_another_release_start_a_sweep() -> None:
    assert SweepSettings.model_validate({}) == SweepSettings()
    assert SweepSettings.model_validate({"interval_s": 4.0, "a_later_word": 7}) == SweepSettings(interval_s=4.0)
    request = PageRequest.model_validate({"terms": {}, "sweep": 1, "counts": True})
    assert (request.sweep, request.after_id) == (1, "")


@pytest.mark.failure(87)
@pytest.mark.demand("H6")
def test_run_input_with_a_field_of_a_later_release_is_understood() -> None:
    given = {
        "task_id": "t-1",
        "definition": "order",
        "version": 1,
        "epoch": 1,
        "undo": False,
        "record": {},
        "steps": [],
    }
    assert RunInput.model_validate({**given, "a_later_word": 7}) == RunInput.model_validate(given)
