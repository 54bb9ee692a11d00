"""Requests for undo that come as signals: which of them are kept, and how much of each."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter

from workflows.undo_requests import Requests, read_request


@pytest.fixture(autouse=True)
def as_in_a_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals can be read, and the logger be used, although no workflow is running."""
    monkeypatch.setattr(workflow, "payload_converter", lambda: PayloadConverter.default)
    monkeypatch.setattr(workflow.logger, "log_during_replay", True)
    monkeypatch.setattr(workflow, "memo_value", lambda _, default: default)
    monkeypatch.setattr(workflow, "info", lambda: SimpleNamespace(workflow_id="order/t/1", run_id="run"))


def carrying(value: Any) -> Sequence[RawValue]:
    """What a signal with this input carries."""
    return [RawValue(PayloadConverter.default.to_payload(value))]


@pytest.mark.failure(82)
@pytest.mark.demand("F1")
def test_request_for_undo_keeps_the_first_of_any_number() -> None:
    asking = Requests()
    for n in range(100):
        asking.take("compensate", carrying(f"request {n}"))
    assert asking.first is not None
    assert asking.first.reason == "request 0"


@pytest.mark.failure(108)
@pytest.mark.demand("F1", "G4")
@pytest.mark.parametrize("name", ["supervisor", "cli:ada", "signal:ada", ""])
def test_requester_named_by_a_signal_is_recorded_as_such(name: str) -> None:
    asked = read_request(carrying({"requester": name, "reason": "late"}), 1)
    assert asked.requester == f"signal:{name or 'unnamed'}"


@pytest.mark.failure(84)
@pytest.mark.demand("F1")
def test_long_reason_of_a_request_for_undo_is_cut() -> None:
    assert read_request(carrying("x" * 10_000), 1).reason == "x" * 500
