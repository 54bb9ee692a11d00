"""Connection to Temporal, by Temporal's own conventions: environment variables and profiles."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from domain.faults import Unreachable, UsageError
from domain.ids import TASK_QUEUE
from domain.redaction import know
from domain.text import clean
from runtime.plugin import new_plugin

_DEFAULT_TARGET = "127.0.0.1:7233"
_PATIENCE_S = 10

_REASONS = {
    "Connection refused": "nothing listens there",
    "dns error": "its name can't be resolved",
    "InvalidContentType": "TLS is on here and the server speaks none (TEMPORAL_TLS, TEMPORAL_API_KEY or a profile)",
    "InvalidCertificate": "TLS: the server's certificate is not accepted",
    "Unauthenticated": "the server accepts no caller without the right key (TEMPORAL_API_KEY or a profile)",
    "PermissionDenied": "the server denies it to this caller",
    "connection closed": "the server ended the connection; perhaps it speaks TLS only (TEMPORAL_TLS)",
}
"""What the SDK's words mean for whoever set the connection."""


def queue_of(definition: str, version: int) -> str:
    """Task queue of the attempts at a definition's tasks: only workers that have loaded it take from there."""
    return f"{TASK_QUEUE}/{definition}/{version}"


def connection() -> ClientConnectConfig:
    """What `TEMPORAL_*` and the profile say of the server (default: 127.0.0.1:7233).

    Raises:
        UsageError: They can't be read, or there is no such profile or file.
    """
    named = os.environ.get("TEMPORAL_CONFIG_FILE")
    if named and not Path(named).exists():
        raise UsageError(f"TEMPORAL_CONFIG_FILE: there is no file {named!r}")
    try:
        config = ClientConfig.load_client_connect_config()
    except (RuntimeError, ValueError, OSError) as error:
        profile = os.environ.get("TEMPORAL_PROFILE") or "default"
        raise UsageError(
            f"the connection to Temporal (TEMPORAL_*, profile {profile!r} in {named or _profiles()}) can't be read:"
            f" {clean(str(error)).strip()}"
        ) from error
    if key := config.get("api_key"):
        know([key])
    config.setdefault("target_host", _DEFAULT_TARGET)
    return config


def _profiles() -> Path:
    """Where Temporal's tools and SDKs look for profiles unless told otherwise."""
    own = "Library/Application Support" if sys.platform == "darwin" else ".config"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / own) / "temporalio" / "temporal.toml"


async def connect(*, lazy: bool = False) -> Client:
    """A client for the server and namespace that `connection` names.

    Raises:
        UsageError: There is no such address, as far as can be told without a call.
        Unreachable: The server can't be used; says why.
    """
    config = connection()
    target = config.get("target_host")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await Client.connect(**config, plugins=[new_plugin()], lazy=lazy)
    except ValueError as error:
        raise UsageError(f"TEMPORAL_ADDRESS: {target!r} is no HOST:PORT: {error}") from error
    except (RuntimeError, RPCError, TimeoutError) as error:
        raise Unreachable(
            f"Temporal at {target}: {_reason(error)}: start it (`python starter.py up`) or set TEMPORAL_ADDRESS"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_PATIENCE_S} s"
    said = clean(str(error))
    short = next((f"{reason}: " for words, reason in _REASONS.items() if words in said), "")
    quoted = re.findall(r'(?:message|error): "([^"]+)"', said)
    return short + (quoted[0].rstrip(".") if quoted else said[:300])


async def check_namespace(client: Client) -> None:
    """Refuse to go on without a namespace: a worker would die of it later, and say less.

    Raises:
        Unreachable: The server has no such namespace, or does not show it.
    """
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=5))
    except RPCError as error:
        missing = error.status is RPCStatusCode.NOT_FOUND
        create = f"create it (`temporal operator namespace create -n {client.namespace}`), or " if missing else ""
        raise Unreachable(
            f"namespace {client.namespace}: {error.message.rstrip('.')}: {create}set TEMPORAL_NAMESPACE"
        ) from error
