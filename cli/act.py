"""`compensate`, `supervise`: what a person asks for. Rows are edited; workers do the work."""

from __future__ import annotations

from cli.app import By, ExitCode, OneId, Output, Reason, Timeout, Wait, required_text, run
from cli.environment import requester, settings
from cli.follow import UNDO_RESTS, follow
from cli.output import Format, print_json, print_line, print_note
from domain.faults import NotFound, Unreachable
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.settings import address
from runtime.temporal import connect
from runtime.wiring import open_state_store, sweep_terms
from store.database import Database
from store.reads import open_reads
from store.schema import check_schema
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport, sweep_once

_VERDICTS = {"past_pivot": ExitCode.CONFLICT, "not_holder": ExitCode.CONFLICT, "not_found": ExitCode.NOT_FOUND}


def compensate(
    task_id: OneId,
    reason: Reason,
    by: By = "",
    wait: Wait = False,
    timeout: Timeout = 300,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Ask for the undo of a task, in whatever state it is."""
    request = UndoRequest(task_id=task_id, requester=requester(by), reason=required_text("--reason", reason))
    return run(_compensate(request, timeout if wait else None, output))


def supervise(output: Output = Format.TEXT) -> ExitCode:
    """Do one sweep of the Supervisor by hand; works while Temporal is down."""
    return run(_supervise(output))


async def _compensate(request: UndoRequest, timeout: float | None, output: Format) -> ExitCode:
    found, task_id = settings(), request.task_id
    async with open_state_store(found) as store:
        verdict = await store.requests.undo(request)
    code = _VERDICTS.get(verdict.verdict, ExitCode.OK)
    if code is ExitCode.NOT_FOUND:
        raise NotFound(verdict.message)
    if code is ExitCode.CONFLICT:
        print_note(f"error: {verdict.message}")
    elif output is Format.TEXT:
        print_line(f"{task_id}: {verdict.verdict}: {verdict.message}; it is {verdict.state}")
    state = verdict.state
    if timeout is not None and code is ExitCode.OK:
        async with open_reads(address(found, "database_url")) as reads:
            ending = await follow(reads, [task_id], timeout, output, good=TaskState.COMPENSATED, rest=UNDO_RESTS)
        code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        print_json(verdict.model_dump(mode="json") | {"state": state})
    return code


async def _supervise(output: Format) -> ExitCode:
    found = settings()
    dsn = address(found, "supervisor_database_url")
    check_schema(dsn, "state")
    try:
        client = await connect()
    except Unreachable as error:
        print_note(
            f"{error}; the sweep goes on, but stale runs are not cancelled (their writes are refused all the same)"
        )
        client = None
    async with Database(dsn, name="state store", size=2) as database:
        report = await sweep_once(SupervisorActivities(Supervision(database), client), sweep_terms(found))
    if output is Format.JSON:
        print_json(report.model_dump())
    else:
        print_line(_sweep_text(report))
    return ExitCode.OK


def _sweep_text(report: SweepReport) -> str:
    late = f"; the oldest was {report.oldest_overdue_s:.1f} s overdue" if report.found else ""
    return f"sweep {report.sweep}: {report.found} expired tasks found, {report.changed} recovered{late}"
