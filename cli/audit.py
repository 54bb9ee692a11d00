"""`audit`: whether every invariant holds, by the stores and by whoever else can bear witness."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, ListWorkflowExecutionsRequest
from temporalio.client import Client, WorkflowHistory

from audit.evidence import Answer, Answers, Caps, Run, Runs
from audit.run import Findings
from audit.run import audit as audit_tasks
from audit.sources import Loader, open_loader
from audit.task_record import Terms
from cli.app import ExitCode, Output, checked_ids, run
from cli.environment import settings
from cli.output import Format, print_json, print_line, print_note
from cli.screen import print_rich, table
from domain.attempts import RunInput
from domain.faults import NotFound, UsageError
from runtime.settings import address
from runtime.temporal import connect
from store.admission import ALIVE
from store.schema import check_schema
from store.submission import digest_of

_SOME = Annotated[list[str] | None, typer.Argument(metavar="ID", callback=checked_ids, help="all tasks by default")]
_LEDGERS = Annotated[str | None, typer.Option(metavar="URL", help="simulators whose ledgers bear witness as well")]
_HISTORIES = Annotated[bool, typer.Option("--histories", help="let Temporal's record of runs bear witness as well")]
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

_AT_ONCE = 20
_RESET = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW


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
    answers = read_answers(submissions) if submissions else None
    return run(_audit(task_ids or None, ledgers, histories, answers, caps, detection_delay, claim_delay, output))


def read_answers(file: Path) -> Answers:
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
            found.append(Answer.model_validate(json.loads(line)))
        except (ValueError, ValidationError) as error:
            raise UsageError(f"{file}, line {number}: {error}") from error
    return Answers.of(found)


async def read_runs(client: Client, loader: Loader) -> Runs:
    """Every attempt's runs that Temporal has on record; those that were made by a reset are marked."""
    asked_at = await loader.now()
    several = asyncio.Semaphore(_AT_ONCE)
    found = await asyncio.gather(*[_with_digest(client, r, several) async for r in _listed(client) if r.is_attempt])
    times = Counter(r.workflow_id for r in found)
    return Runs.of([await _marked(client, r) if times[r.workflow_id] > 1 else r for r in found], asked_at)


async def _listed(client: Client) -> AsyncIterator[Run]:
    """By the service's own call, again while the server is too busy: the client's list fails at a paused run."""
    wanted = ListWorkflowExecutionsRequest(namespace=client.namespace, page_size=1000)
    while True:
        page = await client.workflow_service.list_workflow_executions(wanted, retry=True)
        for seen in page.executions:
            status = WorkflowExecutionStatus.Name(seen.status).removeprefix("WORKFLOW_EXECUTION_STATUS_")
            yield Run(workflow_id=seen.execution.workflow_id, run_id=seen.execution.run_id, status=status)
        wanted.next_page_token = page.next_page_token
        if not page.next_page_token:
            return


async def _with_digest(client: Client, found: Run, several: asyncio.Semaphore) -> Run:
    """With the digest of the business record that it was given: its first event has it."""
    execution = WorkflowExecution(workflow_id=found.workflow_id, run_id=found.run_id)
    wanted = GetWorkflowExecutionHistoryRequest(namespace=client.namespace, execution=execution, maximum_page_size=1)
    async with several:
        page = await client.workflow_service.get_workflow_execution_history(wanted, retry=True)
    given = page.history.events[0].workflow_execution_started_event_attributes.input.payloads
    try:
        run = RunInput.model_validate_json(given[0].data)
    except (IndexError, ValidationError):
        return found
    return found if run.undo else found.model_copy(update={"digest": digest_of(run.definition, run.record)})


async def _marked(client: Client, found: Run) -> Run:
    history = await client.get_workflow_handle(found.workflow_id, run_id=found.run_id).fetch_history()
    return found.model_copy(update={"is_reset": _is_reset(history)})


def _is_reset(history: WorkflowHistory) -> bool:
    return any(e.workflow_task_failed_event_attributes.cause == _RESET for e in history.events)


async def _audit(
    ids: list[str] | None,
    ledgers_url: str | None,
    histories: bool,
    answers: Answers | None,
    with_caps: bool,
    detection_s: float | None,
    claim_s: float,
    output: Format,
) -> ExitCode:
    found = settings()
    state, orders = address(found, "database_url"), address(found, "orders_url")
    check_schema(state, "state")
    check_schema(orders, "orders")
    detection = 2 * found.sweep_interval if detection_s is None else timedelta(seconds=detection_s)
    terms = Terms(detection_delay=detection, claim_delay=timedelta(seconds=claim_s))
    caps = Caps(in_flight=found.max_in_flight, pending=found.max_pending) if with_caps else None
    async with open_loader(state, orders, terms, 3 * ALIVE) as loader:
        total = len(ids) if ids else await loader.count()
        findings = await audit_tasks(
            loader,
            ids,
            await loader.ledgers(ledgers_url) if ledgers_url else None,
            runs=await read_runs(await connect(), loader) if histories else None,
            answers=answers,
            caps=caps,
            tell=lambda f: _progress(f, total),
        )
    if missing := sorted(set(ids or ()) - findings.seen):
        raise NotFound(f"there is no task {', '.join(missing)}")
    _print(findings, output)
    return ExitCode.FAILED if findings.violations else ExitCode.OK


def _progress(findings: Findings, total: int) -> None:
    """Only where there is more to come: a short audit says nothing."""
    if findings.tasks < total:
        print_note(f"{findings.tasks} of {total} tasks, violations: {len(findings.violations)}")


def _print(found: Findings, output: Format) -> None:
    if output is Format.JSON:
        counts = {name: getattr(found, name) for name in ("tasks", "events", "checks", "without_ledgers")}
        print_json(counts | {"violations": [asdict(v) for v in found.violations]})
        return
    if found.violations:
        rows = ([v.task_id, v.invariant, v.text] for v in found.violations)
        print_rich(table(["task", "invariant", "violation"], rows))
    print_line(
        f"tasks: {found.tasks}, events: {found.events}, checks: {found.checks}, violations: {len(found.violations)}"
    )
    if found.without_ledgers:
        print_line(f"not judged by the ledgers, because they moved meanwhile: {found.without_ledgers} tasks")
