"""What Temporal says when it does not take an answer: only some of it means that nobody waits."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure
from temporalio.service import RPCError, RPCStatusCode

from runtime.callbacks.answers import _is_gone

GONE = {RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT}


@pytest.mark.failure(12)
@pytest.mark.parametrize("status", [s for s in RPCStatusCode if s is not RPCStatusCode.OK])
def test_every_status_but_two_asks_for_the_answer_again(status: RPCStatusCode) -> None:
    assert _is_gone(RPCError("", status, b"")) is (status in GONE)


@pytest.mark.failure(12)
def test_missing_namespace_says_nothing_of_a_run() -> None:
    detail = Any()
    detail.Pack(NamespaceNotFoundFailure(namespace="default"))
    raw = GrpcStatus(code=5, details=[detail]).SerializeToString()
    assert not _is_gone(RPCError("", RPCStatusCode.NOT_FOUND, raw))
