"""A connection to Temporal that can't be made: the true reason, and what is set from where."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from devstack.processes.ports import LOOPBACK, free_port
from devstack.servers.temporal import EmbeddedTemporal
from domain.faults import Unreachable, UsageError
from runtime.temporal import connect

_SETTINGS, _HEADERS, _ACK, _END_STREAM_AND_HEADERS = 4, 1, 1, 5
_STATUS_200 = b"\x88"


@pytest.fixture(autouse=True)
def plain_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No connection is set; profiles would be in a folder of this test's."""
    for name in [n for n in os.environ if n.startswith("TEMPORAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@contextmanager
def server_that_knows_nobody() -> Iterator[str]:
    """Speaks as much gRPC as it takes to answer every call with UNAUTHENTICATED; its address."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        threading.Thread(target=_refuse_all, args=(listener,), daemon=True).start()
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"


def _refuse_all(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, connection.makefile("rb") as reader:
            _refuse(connection, reader)


def _refuse(connection: socket.socket, reader: BinaryIO) -> None:
    connection.sendall(_frame(_SETTINGS))
    reader.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    trailers = {"content-type": "application/grpc", "grpc-status": "16", "grpc-message": "Request unauthorized."}
    while head := reader.read(9):
        reader.read(int.from_bytes(head[:3], "big"))
        if head[3] == _SETTINGS and not head[4] & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK))
        if head[3] == _HEADERS:
            block = _STATUS_200 + b"".join(_literal(n) + v for n, v in ((k, _text(v)) for k, v in trailers.items()))
            connection.sendall(_frame(_HEADERS, _END_STREAM_AND_HEADERS, head[5:], block))


def _frame(kind: int, flags: int = 0, stream: bytes = bytes(4), content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream + content


def _literal(name: str) -> bytes:
    return b"\x00" + _text(name)


def _text(value: str) -> bytes:
    return bytes([len(value)]) + value.encode()


@pytest.mark.failure(43)
async def test_server_that_is_not_there_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"{LOOPBACK}:{free_port()}")
    with pytest.raises(Unreachable, match="nothing listens there"):
        await connect()
    with server_that_knows_nobody() as address:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        with pytest.raises(Unreachable, match=r"TEMPORAL_API_KEY.*Request unauthorized"):
            await connect()


@pytest.mark.failure(43)
async def test_name_that_is_no_host_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.invalid:7233")
    with pytest.raises(Unreachable, match=r"temporal\.invalid:7233: its name can't be resolved"):
        await connect()
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:70000")
    with pytest.raises(UsageError, match=r"TEMPORAL_ADDRESS: '127.0.0.1:70000'"):
        await connect()


@pytest.mark.failure(43)
@pytest.mark.parametrize(("variable", "value"), [("TEMPORAL_API_KEY", "key-of-the-cloud"), ("TEMPORAL_TLS", "true")])
async def test_key_or_tls_for_a_server_without_tls_is_named(
    variable: str, value: str, temporal_server: EmbeddedTemporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unreachable, match=rf"TLS is on here and the server speaks none.*{variable}") as refused:
        await connect()
    assert "key-of-the-cloud" not in str(refused.value)


@pytest.mark.failure(43)
async def test_unknown_profile_is_named_with_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEMPORAL_PROFILE", "prod")
    with pytest.raises(UsageError, match=rf"'prod' in {tmp_path}/temporalio/temporal.toml.*not found"):
        await connect()
    mine = tmp_path / "mine.toml"
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(mine))
    with pytest.raises(UsageError, match=f"TEMPORAL_CONFIG_FILE: there is no file '{mine}'"):
        await connect()
    mine.write_text("[profile.dev\n")
    with pytest.raises(UsageError, match=rf"'prod' in {mine}.*TOML"):
        await connect()


@pytest.mark.failure(43)
async def test_certificate_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", "/no/such/client.pem")
    with pytest.raises(UsageError, match=r"/no/such/client\.pem"):
        await connect()
