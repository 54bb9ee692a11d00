"""`rehearse`: a definition through kills and faults on real servers, and the audit's word on all that came of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated

import typer

from chaos.evidence import audit_all
from chaos.fork_server import ForkServer
from chaos.matrix.case_run import CaseRun
from chaos.matrix.case_runner import CaseRunner
from chaos.rehearsal.cases import Case, cases_of
from chaos.rehearsal.examples import example
from chaos.rehearsal.stand_ins import VARIABLE
from cli.app import ExitCode, Output, run
from cli.output import Format, print_json, print_line, print_note
from definitions import registry
from domain.definition import Definition
from domain.faults import NotFound, UsageError
from domain.messages import Json

Name = Annotated[str, typer.Argument(metavar="NAME", help="definition")]
Record = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="a submission to take the record from")]
Runners = Annotated[int, typer.Option(min=1, max=8, help="cases at once, each on servers of its own")]
Only = Annotated[str, typer.Option(metavar="TEXT", help="cases whose name has this in it")]


_OF_THE_SAMPLE = "money_adds_up"
"""Looks into the requests of the sample's payments, which a stand-in does not take."""


@dataclass
class Rehearsal:
    """What came of it. `unfired`: cases whose kill did not come, so that they show nothing."""

    definition: str
    version: int
    cases: int
    kills: int = 0
    problems: list[str] = field(default_factory=list)
    unfired: list[str] = field(default_factory=list)
    seconds: float = 0.0


def rehearse(
    name: Name, record: Record = None, runners: Runners = 2, only: Only = "", output: Output = Format.TEXT
) -> ExitCode:
    """Take a definition through kills and faults at every step and every undo, its services played by stand-ins.

    Exit code 1 if a task did not end as it must, or an audit of all of them finds a violation.
    """
    definition = registry().newest(name)
    if definition is None:
        raise NotFound(f"there is no definition {name!r} (there are: {', '.join(registry().names())})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the servers then as well
    cases = [c for c in cases_of(definition) if only in c.name]
    if not cases:
        raise UsageError(f"no case has {only!r} in its name")
    return run(_rehearse(definition, cases, _record(definition, record), min(runners, len(cases)), output))


def _record(definition: Definition, file: Path | None) -> Json:
    if file is None:
        return example(definition.record)
    try:
        first = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
        return definition.checked(first["record"])
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{file}: its first line is no submission of {definition.name}: {error}") from error


async def _rehearse(
    definition: Definition, cases: Sequence[Case], record: Json, runners: int, output: Format
) -> ExitCode:
    found, began = Rehearsal(definition.name, definition.version, len(cases)), monotonic()
    variables = {n: v for n, v in os.environ.items() if n in ("SAS_DEFINITIONS", "SAS_AGENTS")}
    actions = list(dict.fromkeys(s.action for s in definition.steps))
    with TemporaryDirectory(prefix="rehearsal-") as folder:
        async with AsyncExitStack() as stack:
            fork_server = await stack.enter_async_context(ForkServer())
            waiting = deque(enumerate(cases))
            async with asyncio.TaskGroup() as group:
                for number in range(runners):
                    runner = CaseRunner(
                        Path(folder) / f"{number}",
                        fork_server,
                        stand_ins=actions,
                        variables={**variables, VARIABLE: definition.name},
                    )
                    await stack.enter_async_context(runner)
                    group.create_task(_work_off(runner, waiting, definition, record, found))
    found.seconds = monotonic() - began
    _print(found, output)
    return ExitCode.FAILED if found.problems or found.unfired else ExitCode.OK


async def _work_off(
    runner: CaseRunner, waiting: deque[tuple[int, Case]], definition: Definition, record: Json, found: Rehearsal
) -> None:
    """Take cases until there are none, and audit all of them in the end."""
    names = {}
    await runner.follow()
    while waiting:
        number, case = waiting.popleft()
        names[task_id := f"rehearsal-{number}"] = case.name
        began, one = monotonic(), CaseRun(runner, task_id, case.kills, armed=True, sweep=True)
        problem = ""
        try:
            await one.go(partial(case.play, definition=definition, record=record))
        except Exception as error:
            page = await one.page()
            last = [f"{e.kind} {dict(e.detail)}" for e in page.events[-3:]]
            problem = f"{case.name}: it is {page.task.state} ({type(error).__name__}: {error}); last: {'; '.join(last)}"
            found.problems.append(problem)
        found.kills += len(one.fired)
        if len(one.fired) < len(case.kills):
            found.unfired.append(case.name)
        print_note(f"{monotonic() - began:5.1f} s  {case.name}" + f"\n  {problem}" * bool(problem))
    answers = runner.testbed.answers
    audited, _ = await audit_all(runner.testbed, answers, runs_of={a.task_id for a in answers})
    violations = [v for v in audited.violations if v.invariant != _OF_THE_SAMPLE]
    found.problems += [f"{names.get(v.task_id, v.task_id)}: {v.invariant}: {v.text}" for v in violations]


def _print(found: Rehearsal, output: Format) -> None:
    if output is Format.JSON:
        print_json(vars(found))
        return
    for problem in found.problems:
        print_line(f"✗ {problem}")
    for name in found.unfired:
        print_line(f"? {name}: nobody died there")
    word = "every task ended as it must, and the audit finds every invariant held" if not found.problems else ""
    what = f"{found.definition} v{found.version}: {found.cases} cases, {found.kills} kills in {found.seconds:.0f} s"
    print_line(f"{what}: {word or f'{len(found.problems)} problems'}")
