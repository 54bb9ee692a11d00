"""Kill points around every write and every call of every role: production code carries none of them.

They sit where everything passes: the one method that sends transactions, the HTTP transport, the RPCs of Temporal's
client, and the Agents' loop. So a statement or a call that is added later has its points by itself. Names:

    before:WRITE[:STEP], after:WRITE[:STEP]         a transaction, by its statement: after:complete:charge
    before|sent|replied|after:[undo_]call:STEP      an Agent's request: not sent, sent, answered, outcome known
    before|sent|replied:ask:STEP                    the same, where it asks what became of an earlier call
    before:RPC, after:RPC                           before:start_workflow_execution

`KILL_AT` says where to die: `POINT`, `POINT#n` (the n-th time), `POINT@TASK` (only for that task), several separated
by spaces. `KILL_FILE` names a file that says it as well, and may change while the process runs. Whoever dies writes
`POINT TASKS` to `KILL_LOG` first. `PASSED_LOG` takes the name of each point that is passed.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from temporalio.service import _BridgeServiceClient  # the one place that all RPCs of a client pass

from activities.call_loop import Agents
from domain.messages import AgentRequest
from store import database

QUERIES = Path(database.__file__).parent / "queries"

_ESCORT = {
    "lock",
    "find_task",
    "snapshot",
    "pg_advisory_xact_lock",
    "set_local",
    "add_service",
    "release_waiting",
}
"""Statements that go with others; a transaction of nothing else is named by the first."""

_INLINE = {
    r"SELECT (pg_advisory_xact_lock)\(": r"\1",
    r"SELECT task_id, record, digest, amendments FROM business_record": "load_records",
    r"SELECT body FROM inbox": "find_answer",
    r"SET LOCAL": "set_local",
    r"DELETE FROM stale_run": "forget_stale_runs",
    r"DELETE FROM presence": "leave",
    r"INSERT INTO service": "add_service",
    r"SELECT name, state = 'open'": "find_open_services",
    r"SELECT extract.* FROM sweep": "last_sweep_age",
    r"SELECT count\(\*\) AS held FROM task": "count_held",
}
"""Names of statements that have no file; of any other, its first words."""

_hits: Counter[str] = Counter()
_passed: set[str] = set()


def at(point: str, tasks: Iterable[str] = ()) -> None:
    """Die here, if this is where to die."""
    tasks = tuple(tasks)
    if point not in _passed:
        _passed.add(point)
        _append("PASSED_LOG", point)
    wanted = os.environ.get("KILL_AT", "").split()
    if (file := os.environ.get("KILL_FILE")) and Path(file).exists():
        wanted += Path(file).read_text().split()
    for spec in wanted:
        name, _, count = spec.partition("#")
        name, _, task = name.partition("@")
        if name == point and (not task or task in tasks):
            _hits[spec] += 1
            if _hits[spec] == int(count or 1):
                _append("KILL_LOG", " ".join([point, *tasks]))
                os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Put the points in place, in this process."""
    database.Database.transaction = _transaction(database.Database.transaction)  # type: ignore[method-assign, assignment]
    _BridgeServiceClient._rpc_call = _rpc(_BridgeServiceClient._rpc_call)  # type: ignore[method-assign, assignment]
    transport = httpx.AsyncHTTPTransport
    transport.handle_async_request = _request(transport.handle_async_request)  # type: ignore[method-assign, assignment]
    Agents.carry_out = _perform(Agents.carry_out)  # type: ignore[method-assign, assignment]


Method = Callable[..., Awaitable[Any]]


def _transaction(real: Method) -> Method:
    async def transaction(self: Any, *statements: tuple[str, Mapping[str, Any]], **more: Any) -> Any:
        point, tasks = _write(statements), _tasks(statements)
        at(f"before:{point}", tasks)
        counts, rows = await real(self, *statements, **more)
        at(f"after:{point}", tasks or [r["task_id"] for found in rows for r in found if "task_id" in r])
        return counts, rows

    return transaction


def _write(statements: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Name of a transaction: its statement's, with the step."""
    named = [(_name(text), params) for text, params in statements]
    name, params = next(((n, p) for n, p in named if n not in _ESCORT), named[0])
    if name in ("advance", "undo_advance"):
        undo = name.removesuffix("advance")
        word = "complete" if params["done"] else "begin" if params["begin"] else "finish"
        return ":".join(filter(None, (f"{undo}{word}", params["done"] or params["begin"])))
    return f"{name}:{step}" if isinstance(step := params.get("step"), str) else name


@cache
def _name(text: str) -> str:
    for path in QUERIES.glob("*.sql"):
        if path.read_text() == text:
            return path.stem
    match = next((m for pattern in _INLINE if (m := re.match(pattern, text, re.DOTALL))), None)
    return match.expand(_INLINE[match.re.pattern]) if match else re.sub(r"\W+", "_", text)[:40]


def _tasks(statements: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """The tasks that a transaction names."""
    found: list[str] = []
    for _, params in statements:
        found += [params["task_id"]] if params.get("task_id") else []
        found += [params["key"].partition(":")[0]] if "key" in params else []
        found += params.get("ids") or params.get("task_ids") or []
        found += [d["task_id"] for d in json.loads(params["decisions"])] if "decisions" in params else []
    return list(dict.fromkeys(found))


def _rpc(real: Method) -> Method:
    async def call(self: Any, rpc: str, req: Any, *args: Any, **kwargs: Any) -> Any:
        execution = getattr(req, "workflow_execution", None) or getattr(req, "execution", None)
        workflow_id = getattr(req, "workflow_id", "") or getattr(execution, "workflow_id", "")
        tasks = workflow_id.split("/")[1:2]
        at(f"before:{rpc}", tasks)
        try:
            return await real(self, rpc, req, *args, **kwargs)
        finally:  # a refusal is an answer as well
            at(f"after:{rpc}", tasks)

    return call


def _request(real: Method) -> Method:
    async def handle(self: Any, request: httpx.Request) -> httpx.Response:
        key = request.headers.get("Idempotency-Key", "")
        if not key:
            return await real(self, request)  # type: ignore[no-any-return]
        task_id, step, generation = key.split(":", 2)
        word = "ask" if request.method == "GET" else "undo_call" if generation.startswith("undo") else "call"
        point = f"{word}:{step}"

        async def trace(event: str, _: Any) -> None:
            if event.endswith("send_request_body.complete"):
                at(f"sent:{point}", [task_id])

        request.extensions = {**request.extensions, "trace": trace}
        at(f"before:{point}", [task_id])
        response = await real(self, request)
        at(f"replied:{point}", [task_id])
        return response  # type: ignore[no-any-return]

    return handle


def _perform(real: Method) -> Method:
    async def perform(self: Any, request: AgentRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return await real(self, request, *args, **kwargs)
        finally:  # also where the service answers later
            at(f"after:{'undo_call' if request.undo else 'call'}:{request.step}", [request.task_id])

    return perform


def _append(variable: str, line: str) -> None:
    """Add a line to the log that a variable names; one write, so that lines of several processes don't mix."""
    if path := os.environ.get(variable):
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(log, f"{line}\n".encode())
        os.close(log)
