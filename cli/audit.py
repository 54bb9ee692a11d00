"""`audit`: whether every invariant holds, by the stores and, where there are any, the services' ledgers."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from audit.load import open_loader
from audit.picture import Terms
from audit.run import Findings
from audit.run import audit as audit_tasks
from cli.app import Code, Output, checked_ids, run
from cli.environment import settings
from cli.output import Format, out, say, table, tell, tell_json
from domain.faults import NotFound
from runtime.duties import ALIVE
from runtime.parts import address
from store.schema import check_schema

_SOME = Annotated[list[str] | None, typer.Argument(metavar="ID", callback=checked_ids, help="all tasks by default")]
_LEDGERS = Annotated[str | None, typer.Option(metavar="URL", help="simulators whose ledgers bear witness as well")]
_DETECTION = Annotated[
    float | None,
    typer.Option(min=0, metavar="SECONDS", help="how long a held task may be overdue [default: three sweep intervals]"),
]
_CLAIM = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="how long a task may be due while live workers have its type")
]


def audit(
    task_ids: _SOME = None,
    ledgers: _LEDGERS = None,
    detection_delay: _DETECTION = None,
    claim_delay: _CLAIM = 300,
    output: Output = Format.TEXT,
) -> Code:
    """Check every invariant of tasks against all that is on record; exit code 1 if one does not hold."""
    return run(_audit(task_ids or None, ledgers, detection_delay, claim_delay, output))


async def _audit(
    ids: list[str] | None, ledgers_url: str | None, detection_s: float | None, claim_s: float, output: Format
) -> Code:
    found = settings()
    state, orders = address(found, "database_url"), address(found, "orders_url")
    check_schema(state, "state")
    check_schema(orders, "orders")
    detection = 3 * found.sweep_interval if detection_s is None else timedelta(seconds=detection_s)
    terms = Terms(detection_delay=detection, claim_delay=timedelta(seconds=claim_s))
    async with open_loader(state, orders, terms, 3 * ALIVE) as loader:
        total = len(ids) if ids else await loader.count()
        ledgers = await loader.ledgers(ledgers_url) if ledgers_url else None
        findings = await audit_tasks(loader, ids, ledgers, tell=lambda f: _progress(f, total))
    if missing := sorted(set(ids or ()) - findings.seen):
        raise NotFound(f"there is no task {', '.join(missing)}")
    _print(findings, output)
    return Code.FAILED if findings.violations else Code.OK


def _progress(findings: Findings, total: int) -> None:
    """Only where there is more to come: a short audit says nothing."""
    if findings.tasks < total:
        say(f"{findings.tasks} of {total} tasks, violations: {len(findings.violations)}")


def _print(found: Findings, output: Format) -> None:
    if output is Format.JSON:
        counts = {name: getattr(found, name) for name in ("tasks", "events", "checks", "without_ledgers")}
        tell_json(counts | {"violations": [asdict(v) for v in found.violations]})
        return
    if found.violations:
        rows = ([v.task_id, v.invariant, v.text] for v in found.violations)
        out().print(table(["task", "invariant", "violation"], rows))
    tell(f"tasks: {found.tasks}, events: {found.events}, checks: {found.checks}, violations: {len(found.violations)}")
    if found.without_ledgers:
        tell(f"not judged by the ledgers, because they moved meanwhile: {found.without_ledgers} tasks")
