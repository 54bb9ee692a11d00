"""`compensate`, `resubmit`, `supervise`, `migrate`: what a person asks for. Rows are edited; workers do the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from psycopg.errors import InsufficientPrivilege
from sqlalchemy.exc import DBAPIError

from cli.amend import Change, amended
from cli.app import By, Code, DryRun, OneId, Output, Reason, Timeout, Wait, run, said
from cli.environment import requester, settings
from cli.follow import UNDO_RESTS, Ending, follow
from cli.output import Format, compact, out, say, table, tell, tell_json
from domain.faults import Conflict, NotFound, Unreachable, UsageError
from domain.messages import Json, UndoRequest
from domain.states import SETTLED, TaskState
from runtime.parts import Stores, address, open_state_store, open_stores, sweep_terms
from runtime.settings import Settings
from runtime.temporal import connect
from store.database import Database
from store.reads import open_reads
from store.schema import Database as DatabaseName
from store.schema import check_schema
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport, sweep_once

_VERDICTS = {"past_pivot": Code.CONFLICT, "not_holder": Code.CONFLICT, "not_found": Code.NOT_FOUND}

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help='correct a field of the record: address.line1="Rue 1"'),
]


def compensate(
    task_id: OneId,
    reason: Reason,
    by: By = "",
    wait: Wait = False,
    timeout: Timeout = 300,
    output: Output = Format.TEXT,
) -> Code:
    """Ask for the undo of a task, in whatever state it is."""
    request = UndoRequest(task_id=task_id, requester=requester(by), reason=said("--reason", reason))
    return run(_compensate(request, timeout if wait else None, output))


def resubmit(
    task_id: OneId,
    reason: Reason = "no reason given",
    by: By = "",
    changes: Changes = None,
    wait: Wait = False,
    timeout: Timeout = 300,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> Code:
    """Put a task that is in Error back to Pending, with a fresh budget; --set corrects its record first."""
    asked = _Resubmission(requester(by), said("--reason", reason), changes or [])
    return run(_resubmit(task_id, asked, timeout if wait else None, dry_run, output))


def supervise(output: Output = Format.TEXT) -> Code:
    """Do one sweep of the Supervisor by hand; works while Temporal is down."""
    return run(_supervise(output))


def migrate(output: Output = Format.TEXT) -> Code:
    """Bring the schema of both databases to the newest version, as their owner."""
    found = settings()
    _migrate(found, "state", "admin_database_url")
    _migrate(found, "orders", "admin_orders_url")
    if output is Format.JSON:
        tell_json({"migrated": ["state", "orders"]})
    else:
        tell("state and orders database: at the newest schema version")
    return Code.OK


def _migrate(found: Settings, database: DatabaseName, setting: str) -> None:
    from store.migrate import migrate  # noqa: PLC0415 (Alembic takes half a second, and no other command needs it)

    dsn = address(found, setting)
    try:
        migrate(dsn, database)
    except DBAPIError as error:
        reason = str(error.orig).strip().splitlines()[0]
        if isinstance(error.orig, InsufficientPrivilege):
            raise PermissionError(f"SAS_{setting.upper()} is not the owner's address: {reason}") from error
        raise Unreachable(f"{database} database can't be migrated (SAS_{setting.upper()}): {reason}") from error
    check_schema(dsn, database)


async def _compensate(request: UndoRequest, timeout: float | None, output: Format) -> Code:
    found, task_id = settings(), request.task_id
    async with open_state_store(found) as store:
        verdict = await store.request_undo(request)
    code = _VERDICTS.get(verdict.verdict, Code.OK)
    if code is Code.NOT_FOUND:
        raise NotFound(verdict.message)
    if code is Code.CONFLICT:
        say(f"error: {verdict.message}")
    elif output is Format.TEXT:
        tell(f"{task_id}: {verdict.verdict}: {verdict.message}; it is {verdict.state}")
    state = verdict.state
    if timeout is not None and code is Code.OK:
        ending = await _follow(found, task_id, timeout, output, TaskState.COMPENSATED, UNDO_RESTS)
        code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        tell_json(verdict.model_dump(mode="json") | {"state": state})
    return code


@dataclass(frozen=True)
class _Resubmission:
    requester: str
    reason: str
    changes: list[str]


async def _resubmit(task_id: str, asked: _Resubmission, timeout: float | None, dry_run: bool, output: Format) -> Code:
    found = settings()
    async with open_stores(found) as stores:
        record, made = await _amendment(stores, task_id, asked.changes)
        if not dry_run:
            await _carry_out(stores, task_id, asked, record, made)
    if output is Format.TEXT:
        _print_resubmission(task_id, made, dry_run)
    code, state = Code.OK, TaskState.ERROR if dry_run else TaskState.PENDING
    if timeout is not None and not dry_run:
        ending = await _follow(found, task_id, timeout, output, TaskState.PROCESSED, SETTLED)
        code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        told = {c.path: c.audited() for c in made}
        tell_json({"task_id": task_id, "resubmitted": not dry_run, "state": state, "changes": told})
    return code


async def _carry_out(stores: Stores, task_id: str, asked: _Resubmission, record: Json, made: list[Change]) -> None:
    """Amend first: whoever dies in between has left a task in Error, with a record that says what was meant."""
    if made:
        await stores.orders.amend(task_id, record)
    moved, after = await stores.store.resubmit(
        task_id, requester=asked.requester, reason=asked.reason, changes={c.path: c.audited() for c in made}
    )
    if not moved:
        raise Conflict(f"task {task_id} is {after.state if after else 'gone'}: somebody else moved it meanwhile")


async def _follow(
    found: Settings, task_id: str, timeout: float, output: Format, good: TaskState, rest: frozenset[TaskState]
) -> Ending:
    async with open_reads(address(found, "database_url")) as reads:
        return await follow(reads, [task_id], timeout, output, good=good, rest=rest)


async def _amendment(stores: Stores, task_id: str, changes: list[str]) -> tuple[Json, list[Change]]:
    """The task's record with the changes made, checked; nothing is written."""
    task = await stores.store.snapshot(task_id)
    if task is None:
        raise NotFound(f"there is no task {task_id!r}: `python starter.py list` shows those there are")
    if task.state is not TaskState.ERROR:
        raise Conflict(f"task {task_id} is {task.state}: only a task in Error can be resubmitted")
    if not changes:
        return {}, []
    definition = stores.registry.find(task.definition, task.version)
    if definition is None:
        raise UsageError(f"this release has no {task.definition} v{task.version}, so --set can't be checked")
    found = (await stores.orders.load([task_id])).get(task_id)
    if found is None or found.record is None:
        raise NotFound(f"task {task_id} has no business record")
    return amended(found.record, changes, definition.record)


def _print_resubmission(task_id: str, made: list[Change], dry_run: bool) -> None:
    tell(f"{task_id}: {'would be resubmitted (nothing was written)' if dry_run else 'resubmitted: it is Pending'}")
    if made:
        rows = [[c.path, compact(c.audited()["from"]), compact(c.audited()["to"])] for c in made]
        out().print(table(["field", "before", "after"], rows))


async def _supervise(output: Format) -> Code:
    found = settings()
    dsn = address(found, "supervisor_database_url")
    check_schema(dsn, "state")
    try:
        client = await connect()
    except Unreachable as error:
        say(f"{error}; the sweep goes on, but stale runs are not cancelled (their writes are refused all the same)")
        client = None
    async with Database(dsn, name="state store", size=2) as database:
        report = await sweep_once(SupervisorActivities(Supervision(database), client), sweep_terms(found))
    if output is Format.JSON:
        tell_json(report.model_dump())
    else:
        tell(_sweep_text(report))
    return Code.OK


def _sweep_text(report: SweepReport) -> str:
    late = f"; the oldest was {report.oldest_overdue_s:.1f} s overdue" if report.found else ""
    return f"sweep {report.sweep}: {report.found} expired tasks found, {report.changed} recovered{late}"
