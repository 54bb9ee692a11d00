"""Asks a Temporal server whether it can be used: healthy, with its namespace and search attributes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

NAMESPACE = "default"
_CALL_TIMEOUT = timedelta(seconds=2)
_TYPES = {
    "Text": IndexedValueType.INDEXED_VALUE_TYPE_TEXT,
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    "Double": IndexedValueType.INDEXED_VALUE_TYPE_DOUBLE,
    "Bool": IndexedValueType.INDEXED_VALUE_TYPE_BOOL,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
}


async def is_ready(address: str, search_attributes: Mapping[str, str], *, add_missing: bool) -> bool:
    """Whether the server answers its health check and has the namespace and the search attributes.

    Args:
        address: host and port.
        search_attributes: name to type.
        add_missing: add search attributes that are missing; for a server that runs already. One that is just
            starting adds them itself.
    """
    try:
        client = await Client.connect(address, namespace=NAMESPACE)
        if not await client.service_client.check_health(timeout=_CALL_TIMEOUT):
            return False
        await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=NAMESPACE), timeout=_CALL_TIMEOUT
        )
        missing = await missing_search_attributes(client, search_attributes)
        if missing and add_missing:
            await add_search_attributes(client, missing)
            missing = await missing_search_attributes(client, search_attributes)
    except (RuntimeError, RPCError):  # RuntimeError: the connection was refused
        return False
    return not missing


async def missing_search_attributes(client: Client, wanted: Mapping[str, str]) -> dict[str, str]:
    """Returns those of the wanted search attributes that the client's namespace lacks."""
    if not wanted:
        return {}
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), timeout=_CALL_TIMEOUT
    )
    return {name: kind for name, kind in wanted.items() if name not in listed.custom_attributes}


async def add_search_attributes(client: Client, attributes: Mapping[str, str]) -> None:
    """Adds search attributes to the client's namespace; one that was added meanwhile is no error."""
    request = AddSearchAttributesRequest(
        namespace=client.namespace,
        search_attributes={name: _TYPES[kind] for name, kind in attributes.items()},
    )
    try:
        await client.operator_service.add_search_attributes(request, timeout=_CALL_TIMEOUT)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
