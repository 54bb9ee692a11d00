"""As many steps as there may be, each with the largest request and the largest answer: no sum of them is too much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

from activities.agents import all_agents, catalogue
from activities.http import MOST_BYTES
from definitions import registry
from domain.definition_checks import MOST_STEPS
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.roles import Role
from testing.bench import Bench
from tests.workers import WorkerProcess
from workflows.step_work import MOST_REQUEST_BYTES

RECEIPT = "r" * (MOST_BYTES - len('{"text":""}'))
TEXT = "t" * (MOST_REQUEST_BYTES - 40)


class Archive(BaseHTTPRequestHandler):
    """Answers everything with a receipt as long as may be kept."""

    asked: ClassVar[list[tuple[str, Any]]] = []

    def do_POST(self) -> None:
        """Note what was asked."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["text"] == TEXT
        self.asked.append((self.path, body.get("seen")))
        answer = f'{{"text":"{RECEIPT}"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def archive() -> Iterator[str]:
    """The service, for as long as the context lasts; its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Archive)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def kept_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Agent and the definition are registered here."""
    monkeypatch.setenv("SAS_DEFINITIONS", "tests.failures.large")
    monkeypatch.setenv("SAS_AGENTS", "tests.failures.large")
    known = (registry, all_agents, catalogue)
    for found in known:
        found.cache_clear()
    Archive.asked.clear()
    yield
    monkeypatch.undo()
    for found in known:
        found.cache_clear()


@pytest.mark.failure(22)
@pytest.mark.timeout(300)
@pytest.mark.demand("B8", "B9", "D5", "F3")
async def test_hundred_steps_with_large_answers_are_done_recovered_and_undone(bench: Bench, task_id: str) -> None:
    """The worker that began them is killed in the middle."""
    with archive() as url:
        settings = bench.settings.model_copy(update={"services": {**bench.settings.services, "archive": url}})
        await bench.submit({"text": TEXT}, task_id, "volumes")
        with WorkerProcess(settings, kill_at=f"after:complete:page{MOST_STEPS // 2:03d}") as worker:
            await worker.died()
        await bench.expire(task_id)
        async with bench.worker(Role.SCHEDULER, Role.AGENTS, services={"archive"}, settings=settings):
            assert await bench.settled_with_sweeps(task_id, within_s=120) is TaskState.PROCESSED
            asked = UndoRequest(task_id=task_id, requester="cli:ada", reason="too long")
            await bench.stores.store.requests.undo(asked)
            assert await bench.reached(task_id, TaskState.COMPENSATED, within_s=120) is TaskState.COMPENSATED
        page = await bench.page(task_id)
    assert page.task.epoch >= 3, "an attempt, its recovery, and an undo; more of them where the machine is busy"
    kept = [seen for path, seen in Archive.asked if path == "/pages"]
    assert list(dict.fromkeys(kept)) == [n * len(RECEIPT) for n in range(MOST_STEPS)]
    assert sum(path == "/pages/remove" for path, _ in Archive.asked) >= MOST_STEPS
    for epoch in range(1, page.task.epoch + 1):
        run = await bench.client.get_workflow_handle(f"volumes/{task_id}/{epoch}").describe()
        assert run.raw_description.workflow_execution_info.history_size_bytes < 50 * 1024 * 1024
