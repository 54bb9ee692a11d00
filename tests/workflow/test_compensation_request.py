"""The workflow that asks for undo in every state of a task, by itself."""

from __future__ import annotations

import pytest

from workflows.compensation_request import CompensationRequest


@pytest.mark.demand("F1")
def test_request_for_undo_keeps_the_first_of_any_number_that_say_the_same() -> None:
    once, often = CompensationRequest(), CompensationRequest()
    once.on_signal("compensate", [])
    for _ in range(100):
        often.on_signal("compensate", [])
    assert vars(often) == vars(once)
