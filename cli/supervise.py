"""`supervise`: one sweep of the Supervisor by hand."""

from __future__ import annotations

from cli.app import ExitCode, Output, run
from cli.environment import find_settings
from cli.output import Format, print_json, print_line, print_note
from domain.faults import Unreachable
from runtime.settings import address
from runtime.temporal import connect
from runtime.wiring import sweep_settings
from store.database import Database
from store.schema import check_schema
from store.supervision import Supervision
from supervisor.activities import SupervisorActivities, SweepReport
from supervisor.sweep import sweep_once


def supervise(output: Output = Format.TEXT) -> ExitCode:
    """Do one sweep of the Supervisor by hand; works while Temporal is down."""
    return run(_supervise(output))


async def _supervise(output: Format) -> ExitCode:
    settings = find_settings()
    dsn = address(settings, "supervisor_database_url")
    check_schema(dsn, "state")
    try:
        client = await connect()
    except Unreachable as error:
        print_note(
            f"{error}; the sweep goes on, but stale runs are not cancelled (their writes are refused all the same)"
        )
        client = None
    async with Database(dsn, name="state store", size=2) as database:
        report = await sweep_once(SupervisorActivities(Supervision(database), client), sweep_settings(settings))
    if output is Format.JSON:
        print_json(report.model_dump())
    else:
        print_line(_sweep_text(report))
    return ExitCode.OK


def _sweep_text(report: SweepReport) -> str:
    late = f"; the oldest was {report.oldest_overdue_s:.1f} s overdue" if report.found else ""
    return f"sweep {report.sweep}: {report.found} expired tasks found, {report.changed} recovered{late}"
