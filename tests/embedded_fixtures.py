"""Real servers for the tests, one of each a session. Import both into `conftest.py`.

As root, pytest's folders are closed to the user that runs PostgreSQL; the launcher then puts the data
elsewhere, and `delete_data` removes it from there at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from devstack.servers.postgres import EmbeddedPostgres
from devstack.servers.temporal import EmbeddedTemporal
from domain.search_attributes import SEARCH_ATTRIBUTES


def listening(*processes: psutil.Process) -> set[tuple[str, int]]:
    """Addresses and ports at which these processes listen."""
    sockets = [s for p in processes for s in p.net_connections(kind="inet")]
    return {(s.laddr.ip, s.laddr.port) for s in sockets if s.status == psutil.CONN_LISTEN}


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL without protection against power cuts."""
    server = EmbeddedPostgres(tmp_path_factory.mktemp("postgres"), durable=False)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTemporal]:
    """A running Temporal server without user interface, with our search attributes."""
    server = EmbeddedTemporal(tmp_path_factory.mktemp("temporal"), ui_port=0, search_attributes=SEARCH_ATTRIBUTES)
    try:
        server.start()
        yield server
    finally:
        server.delete_data()
