"""`audit`: whether every invariant holds, by the stores and by what other evidence there is."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from audit.evidence import SubmissionReplies, SubmissionReply
from audit.run import AuditResult
from audit.run import audit as audit_tasks
from audit.sources.ledgers import read_ledgers
from audit.sources.runs import read_runs
from audit.sources.stores import open_loader
from audit.task import Tolerances
from cli.app import ExitCode, Output, checked_ids, run
from cli.environment import find_settings
from cli.output import Format, print_json, print_line, print_note
from cli.screen import print_rich, table
from domain.faults import NotFound, UsageError
from runtime.settings import address
from runtime.temporal import connect
from runtime.wiring import caps
from store.admission import GONE
from store.schema import check_schema

_SOME = Annotated[list[str] | None, typer.Argument(metavar="ID", callback=checked_ids, help="all tasks by default")]
_LEDGERS = Annotated[str | None, typer.Option(metavar="URL", help="check the ledgers of the simulators there as well")]
_HISTORIES = Annotated[bool, typer.Option("--histories", help="check Temporal's record of runs as well")]
_SUBMISSIONS = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="log of some submitters: task_id, submitter, digest, verdict and new, a line"),
]
_CAPS = Annotated[bool, typer.Option("--caps", help="the caps set now must have held at every accepted submission")]
_DETECTION = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="how long a held task may be overdue [default: two sweep intervals]"),
]
_CLAIM = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="how long a task may be due while live workers have its type")
]


def audit(
    task_ids: _SOME = None,
    ledgers: _LEDGERS = None,
    histories: _HISTORIES = False,
    submissions: _SUBMISSIONS = None,
    caps: _CAPS = False,
    detection_delay: _DETECTION = None,
    claim_delay: _CLAIM = 300,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Check every invariant of tasks against all that is on record; exit code 1 if one does not hold."""
    replies = read_replies(submissions) if submissions else None
    return run(_audit(task_ids or None, ledgers, histories, replies, caps, detection_delay, claim_delay, output))


def read_replies(file: Path) -> SubmissionReplies:
    """A submitters' log: one JSON object a line.

    Raises:
        UsageError: It can't be read, or a line is none; names it.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(SubmissionReply.model_validate(json.loads(line)))
        except (ValueError, ValidationError) as error:
            raise UsageError(f"{file}, line {number}: {error}") from error
    return SubmissionReplies.of(found)


async def _audit(
    ids: list[str] | None,
    ledgers_url: str | None,
    histories: bool,
    replies: SubmissionReplies | None,
    with_caps: bool,
    detection_s: float | None,
    claim_s: float,
    output: Format,
) -> ExitCode:
    settings = find_settings()
    state, orders = address(settings, "database_url"), address(settings, "orders_url")
    check_schema(state, "state")
    check_schema(orders, "orders")
    detection = 2 * settings.sweep_interval if detection_s is None else timedelta(seconds=detection_s)
    tolerances = Tolerances(detection_delay=detection, claim_delay=timedelta(seconds=claim_s))
    async with open_loader(state, orders, tolerances, GONE) as loader:
        total = len(ids) if ids else await loader.count()
        result = await audit_tasks(
            loader,
            ids,
            await read_ledgers(ledgers_url, await loader.now()) if ledgers_url else None,
            runs=await read_runs(await connect(), await loader.now()) if histories else None,
            replies=replies,
            caps=caps(settings) if with_caps else None,
            on_page=lambda result: _progress(result, total),
        )
    if missing := sorted(set(ids or ()) - result.task_ids):
        raise NotFound(f"there is no task {', '.join(missing)}")
    _print(result, output)
    return ExitCode.FAILED if result.violations else ExitCode.OK


def _progress(result: AuditResult, total: int) -> None:
    """Only where there is more to come: a short audit says nothing."""
    if result.tasks < total:
        print_note(f"{result.tasks} of {total} tasks, violations: {len(result.violations)}")


def _print(result: AuditResult, output: Format) -> None:
    if output is Format.JSON:
        counts = {name: getattr(result, name) for name in ("tasks", "events", "checks", "without_ledgers")}
        print_json(counts | {"violations": [asdict(v) for v in result.violations]})
        return
    if result.violations:
        rows = ([v.task_id, v.invariant, v.text] for v in result.violations)
        print_rich(table(["task", "invariant", "violation"], rows))
    print_line(
        f"tasks: {result.tasks}, events: {result.events}, checks: {result.checks}, violations: {len(result.violations)}"
    )
    if result.without_ledgers:
        print_line(f"not checked by the ledgers, because they moved meanwhile: {result.without_ledgers} tasks")
