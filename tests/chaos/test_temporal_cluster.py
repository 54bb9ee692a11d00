"""A Temporal cluster on PostgreSQL instead of the development server: each service a process, each of which dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from chaos.temporal_cluster import lacking
from chaos.testbed import Testbed
from testing.records import ORDER

needs_cluster = pytest.mark.skipif(bool(lacking()), reason=f"not on the PATH: {', '.join(lacking())}")
ORDERS = 6


@needs_cluster
@pytest.mark.demand("H7", "H9")
@pytest.mark.timeout(600)
async def test_orders_settle_while_each_process_of_a_cluster_is_killed(tmp_path: Path) -> None:
    async with Testbed(tmp_path, cluster=True) as testbed:
        await testbed.worker(0).start()
        for member in testbed.temporal:
            ids = [f"o-{uuid4().hex[:12]}" for _ in range(ORDERS)]
            await asyncio.gather(*(testbed.submit(ORDER, task_id) for task_id in ids))
            await member.restart()
            await testbed.settle(120, ids)
        assert await testbed.audit() == []
