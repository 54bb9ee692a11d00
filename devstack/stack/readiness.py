"""Whether the processes of a stack can do their work, asked of those who would notice: HTTP and Temporal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import httpx
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, GetSystemInfoRequest
from temporalio.client import Client
from temporalio.service import RPCError

from domain.ids import TASK_QUEUE

_CALL_TIMEOUT = timedelta(seconds=2)


async def answers(url: str, name: Mapping[str, str]) -> bool:
    """Whether what is healthy there names itself so: anybody could answer at that port."""
    try:
        async with httpx.AsyncClient(timeout=2, trust_env=False) as client:
            told = (await client.get(url)).raise_for_status().json()
            return all(told.get(key) == value for key, value in name.items())
    except (httpx.HTTPError, ValueError, AttributeError):
        return False


async def polls(client: Client, pid: int) -> bool:
    """Whether the Scheduler's worker of process `pid` takes work from Temporal."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request, timeout=_CALL_TIMEOUT)
    except RPCError:
        return False
    return any(f":{pid}:" in poller.identity for poller in answer.pollers)


async def server_version(client: Client) -> str:
    """Version of the Temporal server."""
    info = await client.workflow_service.get_system_info(GetSystemInfoRequest(), timeout=_CALL_TIMEOUT)
    return info.server_version
