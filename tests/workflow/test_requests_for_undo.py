"""Requests for undo that come as signals: which of them are kept, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from workflows.asking import read_request
from workflows.compensation_request import CompensationRequest
from workflows.scheduler import Scheduler


@pytest.fixture(autouse=True)
def as_in_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals can be read, and the logger be used, although no workflow is running."""
    monkeypatch.setattr(workflow, "payload_converter", lambda: PayloadConverter.default)
    monkeypatch.setattr(workflow.logger, "log_during_replay", True)


def carrying(reason: str) -> Sequence[RawValue]:
    """What a signal with this reason carries."""
    return [RawValue(PayloadConverter.default.to_payload(reason))]


@pytest.mark.demand("F1")
def test_request_for_undo_keeps_the_first_of_any_number() -> None:
    asking = CompensationRequest()
    for n in range(100):
        asking.on_signal("compensate", carrying(f"request {n}"))
    assert asking._asked is not None
    assert asking._asked.reason == "request 0"


@pytest.mark.demand("F1")
def test_run_keeps_the_first_ten_requests_for_undo_that_wait_at_once() -> None:
    run = Scheduler()
    for n in range(100):
        run.on_signal("compensate", carrying(f"request {n}"))
    assert [r.reason for r in run._asked] == [f"request {n}" for n in range(10)]


@pytest.mark.demand("F1")
def test_long_reason_of_a_request_for_undo_is_cut() -> None:
    assert read_request(carrying("x" * 10_000)).reason == "x" * 500
