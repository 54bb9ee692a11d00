"""Temporal: the server, the namespace, and what must be registered there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from domain.faults import Unreachable
from domain.search_attributes import SEARCH_ATTRIBUTES
from operators.checks.finding import PATIENCE_S, UP, Check
from runtime.temporal import connect
from supervisor.schedule import SCHEDULE_ID


async def check_temporal() -> AsyncIterator[Check]:
    """Each in turn; what needs a part that was found missing is left out."""
    try:
        client = await connect()
    except Unreachable as error:
        yield Check("Temporal", "TEMPORAL_ADDRESS", str(error), f"start it, correct TEMPORAL_ADDRESS, or {UP}")
        return
    place = client.service_client.config.target_host
    yield Check("Temporal", place, "answers")
    namespace = await _namespace(client, place)
    yield namespace
    if namespace.is_well:
        yield await _search_attributes(client, place)
        yield await _schedule(client, place)


async def _namespace(client: Client, place: str) -> Check:
    what = f"namespace {client.namespace}"
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=PATIENCE_S))
    except RPCError as error:
        todo = f"`temporal operator namespace create -n {client.namespace}`, or set TEMPORAL_NAMESPACE"
        return Check(what, place, error.message, todo)
    return Check(what, place, "is there")


async def _search_attributes(client: Client, place: str) -> Check:
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        answer = await client.operator_service.list_search_attributes(request, timeout=timedelta(seconds=PATIENCE_S))
    except RPCError as error:
        return Check("search attributes", place, error.message, "ask whoever runs the server to list them")
    there = {name: IndexedValueType.Name(kind) for name, kind in answer.custom_attributes.items()}
    wrong = [n for n, k in SEARCH_ATTRIBUTES.items() if there.get(n) != f"INDEXED_VALUE_TYPE_{k.upper()}"]
    if wrong:
        flags = " ".join(f"--name {n} --type {SEARCH_ATTRIBUTES[n]}" for n in wrong)
        todo = f"`temporal operator search-attribute create -n {client.namespace} {flags}`"
        return Check("search attributes", place, f"missing, or of another type: {', '.join(wrong)}", todo)
    return Check("search attributes", place, "registered")


async def _schedule(client: Client, place: str) -> Check:
    what = f"Schedule {SCHEDULE_ID}"
    try:
        found = await client.get_schedule_handle(SCHEDULE_ID).describe(rpc_timeout=timedelta(seconds=PATIENCE_S))
    except RPCError as error:
        missing = error.status is RPCStatusCode.NOT_FOUND
        todo = "start a worker with the role, which makes it: `python worker.py --roles supervisor`"
        return Check(what, place, "is missing" if missing else error.message, todo)
    if found.schedule.state.paused:
        return Check(what, place, "is paused", f"`temporal schedule toggle -s {SCHEDULE_ID} --unpause`")
    return Check(what, place, "is there")
