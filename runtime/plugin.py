"""The one plugin that clients, workers and the replayer share, so that tests and production cannot drift apart."""

from __future__ import annotations

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.plugin import SimplePlugin
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

_OURS = ("activities", "domain", "pipelines", "store", "supervisor", "workflows")
_LIBRARIES = (
    "annotated_types",
    "httpx",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pydantic_core",
    "sqlalchemy",
    "sqlmodel",
)


def new_plugin() -> SimplePlugin:
    """Pydantic messages, and a sandbox that takes our own and the libraries' modules as they are."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*_OURS, *_LIBRARIES)
    return SimplePlugin(
        "scheduler-agent-supervisor",
        data_converter=pydantic_data_converter,
        workflow_runner=SandboxedWorkflowRunner(restrictions=restrictions),
    )
