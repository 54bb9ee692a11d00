"""A Temporal cluster on PostgreSQL instead of the development server: each service a process, each of which dies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from chaos.evidence import audit_all
from chaos.temporal_cluster import lacking
from chaos.testbed import ChaosTestbed
from domain.faults import Unreachable
from runtime.temporal import check_namespace, connect
from testing.records import ORDER

needs_cluster = pytest.mark.skipif(bool(lacking()), reason=f"not on the PATH: {', '.join(lacking())}")
ORDERS = 6


@needs_cluster
@pytest.mark.demand("H7", "H9")
@pytest.mark.timeout(600)
async def test_orders_settle_while_each_process_of_a_cluster_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChaosTestbed(tmp_path, cluster=True) as testbed:
        await only_whoever_has_both_gets_in(testbed, monkeypatch)
        await testbed.worker(0).start()
        for member in testbed.temporal:
            ids = [f"o-{uuid4().hex[:12]}" for _ in range(ORDERS)]
            await asyncio.gather(*(testbed.submit(ORDER, task_id) for task_id in ids))
            await member.restart()
            await testbed.settle(120, ids)
        assert (await audit_all(testbed, testbed.answers))[0].violations == []


async def only_whoever_has_both_gets_in(testbed: ChaosTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client certificate and the API key."""
    for name, value in testbed.to_temporal.items():
        monkeypatch.setenv(name, value)
    await check_namespace(await connect())
    with monkeypatch.context() as without:
        without.delenv("TEMPORAL_API_KEY")
        with pytest.raises(Unreachable, match="Request unauthorized"):
            await check_namespace(await connect())
    with monkeypatch.context() as without:
        without.delenv("TEMPORAL_TLS_CLIENT_CERT_PATH")
        without.delenv("TEMPORAL_TLS_CLIENT_KEY_PATH")
        with pytest.raises(Unreachable, match="Temporal at 127"):
            await check_namespace(await connect())
