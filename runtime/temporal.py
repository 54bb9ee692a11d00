"""Connection to Temporal, by Temporal's own conventions: environment variables and profiles."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from urllib.parse import quote

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig
from temporalio.service import RPCError

from domain.faults import Unreachable
from runtime.plugin import new_plugin

TASK_QUEUE = "scheduler"


async def connect(*, lazy: bool = False) -> Client:
    """A client for the server and namespace that `TEMPORAL_*` or the profile names (default: 127.0.0.1:7233).

    Raises:
        Unreachable: No server answers there.
    """
    config = ClientConfig.load_client_connect_config()
    config.setdefault("target_host", "127.0.0.1:7233")
    target = config.get("target_host")
    try:
        async with asyncio.timeout(10):
            return await Client.connect(**config, plugins=[new_plugin()], lazy=lazy)
    except (RuntimeError, RPCError, TimeoutError, ValueError) as error:
        raise Unreachable(
            f"Temporal does not answer at {target}: start it (`python starter.py up`) or set TEMPORAL_ADDRESS"
        ) from error


async def check_namespace(client: Client) -> None:
    """Refuse to go on without a namespace: a worker would die of it later, and say less.

    Raises:
        Unreachable: The server has no such namespace, or does not show it.
    """
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=5))
    except RPCError as error:
        raise Unreachable(
            f"namespace {client.namespace}: {error.message.rstrip('.')}: create it"
            f" (`temporal operator namespace create -n {client.namespace}`), or set TEMPORAL_NAMESPACE"
        ) from error


def ui_link(ui_url: str, namespace: str, workflow_id: str, run_id: str | None = None) -> str:
    """Address of a run in the Temporal UI."""
    base = f"{ui_url.rstrip('/')}/namespaces/{quote(namespace, safe='')}/workflows/{quote(workflow_id, safe='')}"
    return f"{base}/{run_id}/history" if run_id else base
