"""The one plugin that clients, workers and the replayer share, so that tests and production cannot drift apart."""

from __future__ import annotations

from dataclasses import replace

from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.plugin import SimplePlugin
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from domain.namespace import NAMESPACE
from domain.redaction import redact

_OURS = [NAMESPACE + name for name in ("activities", "domain", "definitions", "store", "supervisor", "workflows")]
_LIBRARIES = (
    "annotated_types",
    "httpx",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pydantic_core",
)


class _FailureConverter(DefaultFailureConverter):
    """What Temporal keeps of an error has nothing secret in it."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Fill in a failure; its causes pass through here as well."""
        super().to_failure(exception, payload_converter, failure)
        failure.message, failure.stack_trace = redact(failure.message), redact(failure.stack_trace)


def new_plugin() -> SimplePlugin:
    """Pydantic messages, failures without secrets, and a sandbox that takes our and libraries' modules as they are."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*_OURS, *_LIBRARIES)
    return SimplePlugin(
        "scheduler-agent-supervisor",
        data_converter=replace(pydantic_data_converter, failure_converter_class=_FailureConverter),
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
    )
