"""The state store by itself, and reads on it, for the tests of one file; one that needs it otherwise says how."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from devstack.servers.postgres import EmbeddedPostgres
from store.reads import Reads, open_reads
from tests.integration.resubmitting import People
from tests.integration.store_bench import StoreBench, own_store_bench


@pytest.fixture(scope="module")
async def opened(templates: EmbeddedPostgres) -> AsyncIterator[StoreBench]:
    """Both databases, of this file."""
    async with own_store_bench(templates) as bench:
        yield bench


@pytest.fixture
def store(opened: StoreBench) -> Iterator[StoreBench]:
    """Both databases, empty."""
    opened.empty()
    yield opened
    opened.empty()


@pytest.fixture(scope="module")
async def reads(opened: StoreBench) -> AsyncIterator[Reads]:
    """Reads on the state store of this file."""
    async with open_reads(opened.databases.app) as found:
        yield found


@pytest.fixture
def people(store: StoreBench, reads: Reads, task_id: str) -> People:
    """The people who resubmit the task."""
    return People(store, reads, task_id)
