"""Stores, servers and services that go away for a while: nothing is lost, and nobody is charged for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from temporalio.service import RPCError

from devstack.servers.postgres import EmbeddedPostgres
from domain.states import StepState, TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from testing.databases import Databases
from testing.records import FULL
from testing.simulators import Simulators
from testing.waiting import eventually
from tests.workers import WorkerProcess


@contextmanager
def away(server: EmbeddedPostgres, dsn: str) -> Iterator[None]:
    """A database takes no connection, and has cut those there were."""
    name = urlsplit(dsn).path[1:]
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.failure(46)
@pytest.mark.demand("F1", "F11")
async def test_undo_requested_while_the_store_is_away_is_not_forgotten(
    bench: Bench,
    simulators: Simulators,
    templates: EmbeddedPostgres,
    databases: Databases,
    order: dict[str, Any],
    task_id: str,
) -> None:
    simulators.fault("shipping", "latency", latency_ms=2_000, match={"task_id": task_id, "undo": False})
    async with bench.worker():
        await bench.submit(order, task_id)
        await bench.step_reached(task_id, "ship", StepState.RUNNING)
        run = bench.client.get_workflow_handle(str((await bench.page(task_id)).task.locked_by))
        asking = bench.client.get_workflow_handle(f"order/{task_id}/undo")

        async def handed_on() -> bool:
            try:
                await asking.describe()
            except RPCError:
                return False
            return True

        with away(templates, databases.owner):
            await run.signal("compensate", "the customer called")
            await eventually(handed_on)
        assert (await asking.result())["verdict"] in ("accepted", "already")
        assert await bench.settled_with_sweeps(task_id) is TaskState.COMPENSATED
    requests = [e.detail["reason"] for e in (await bench.page(task_id)).events if e.kind == "undo_requested"]
    assert requests == ["the customer called"]
    assert simulators.live(task_id).get("payments") is None


@pytest.mark.failure(47)
@pytest.mark.demand("F1", "H9")
@pytest.mark.parametrize("started", ["before", "meanwhile"])
async def test_undo_needs_no_orders_database_and_other_orders_wait_for_it(
    bench: Bench,
    simulators: Simulators,
    templates: EmbeddedPostgres,
    databases: Databases,
    order: dict[str, Any],
    task_id: str,
    started: str,
) -> None:
    """By a worker that was there before, and by one that starts meanwhile."""
    waiting = f"{task_id}-2"
    async with AsyncExitStack() as stack:
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):
            await bench.submit(order, task_id)
            assert await bench.settled(task_id) is TaskState.PROCESSED
        if started == "before":
            await stack.enter_async_context(bench.worker(Role.SCHEDULER, Role.AGENTS))
        if started == "meanwhile":
            await bench.submit(order, waiting)
        with away(templates, databases.orders_owner):
            if started == "meanwhile":
                await stack.enter_async_context(bench.worker(Role.SCHEDULER, Role.AGENTS))
            await bench.stores.store.requests.undo(UndoRequest(task_id=task_id, requester="test", reason="by mistake"))
            assert await bench.reached(task_id, TaskState.COMPENSATED) is TaskState.COMPENSATED
        if started == "before":
            await bench.submit(order, waiting)
        assert await bench.settled(waiting) is TaskState.PROCESSED
    assert (await bench.page(waiting)).task.epoch <= 4, "it was not claimed in vain again and again"
    assert simulators.live(task_id).get("payments") is None


@pytest.mark.failure(75)
@pytest.mark.demand("B1", "C11")
async def test_step_that_waits_for_an_answer_holds_no_slot(
    bench: Bench, simulators: Simulators, order: dict[str, Any], machine: dict[str, Any], task_id: str
) -> None:
    waits = f"{task_id}-machine"
    one_slot = bench.settings.model_copy(update={"task_slots": 1, "callback_url": "http://127.0.0.1:9"})
    async with bench.worker(Role.SCHEDULER, Role.AGENTS, settings=one_slot):
        await bench.submit(machine, waits, "provisioning")
        await bench.step_reached(waits, "machine", StepState.RUNNING)
        await bench.submit(order, task_id)
        assert await bench.settled(task_id) is TaskState.PROCESSED
        assert (await bench.page(waits)).task.state is TaskState.PROCESSING
    assert simulators.live(task_id) == FULL


@pytest.mark.failure(2)
@pytest.mark.demand("B10", "G6")
async def test_draining_worker_calls_and_claims_nothing_and_releases_its_row(
    bench: Bench, simulators: Simulators, order: dict[str, Any], task_id: str
) -> None:
    """In the middle of an inline step, whose outcome it writes itself."""
    simulators.fault("stock", "error", status=503, retry_after_s=4, match={"task_id": task_id})
    with WorkerProcess(bench.settings) as worker:
        await bench.submit(order, task_id)
        await simulators.called("stock", task_id)
        assert await worker.stop() == 0
    page = await bench.page(task_id)
    kinds = [e.kind for e in page.events]
    assert (page.task.state, page.task.failure_count) == (TaskState.PENDING, 0)
    assert (len(await bench.attempts(task_id)), kinds[-1]) == (1, "released")
    assert simulators.calls("stock", task_id) == 1


@pytest.mark.failure(57)
@pytest.mark.demand("A1", "A6", "B6")
async def test_begun_order_goes_on_once_its_lost_record_is_restored(
    bench: Bench, simulators: Simulators, databases: Databases, order: dict[str, Any], task_id: str
) -> None:
    simulators.fault("payments", "error", status=503, retry_after_s=5, match={"task_id": task_id}, times=1)
    with WorkerProcess(bench.settings) as worker:
        await bench.submit(order, task_id)
        await simulators.called("payments", task_id)
        assert await worker.stop() == 0
    with psycopg.connect(databases.orders_owner, autocommit=True) as orders:
        orders.execute("CREATE TABLE kept AS SELECT * FROM business_record")
        orders.execute("DELETE FROM business_record")
        async with bench.worker(Role.SCHEDULER, Role.AGENTS):

            async def missed() -> bool:
                return [a.kind for a in (await bench.page(task_id)).alerts] == ["record_missing"]

            await eventually(missed)
            assert (await bench.page(task_id)).task.state is TaskState.PENDING
            orders.execute("INSERT INTO business_record SELECT * FROM kept")
            assert await bench.settled(task_id) is TaskState.PROCESSED
    assert simulators.live(task_id) == FULL


class _Odd(BaseHTTPRequestHandler):
    """A service that answers its first request with a success that makes no sense, and then knows nothing of it."""

    answers = 0

    def do_POST(self) -> None:
        type(self).answers += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"reservation": null}' if self.answers == 1 else b'{"reservation_id": "r-1"}'
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        body = b'{"error": {"code": "unknown_key", "message": "never seen"}}'
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.failure(26)
@pytest.mark.demand("C5")
async def test_unexpected_body_is_an_unknown_outcome_and_tried_again(
    bench: Bench, order: dict[str, Any], task_id: str
) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Odd)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        odd = {**bench.settings.services, "stock": f"http://127.0.0.1:{server.server_port}"}
        async with bench.worker(settings=bench.settings.model_copy(update={"services": odd})):
            await bench.submit(order, task_id)
            assert await bench.settled(task_id) is TaskState.PROCESSED
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert len(await bench.attempts(task_id)) == 1
    assert _Odd.answers == 2
