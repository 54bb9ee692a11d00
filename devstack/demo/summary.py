"""The end of the demo in print: how each task ended, what was broken, what the ledgers say, what was checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.screen import coloured, table
from devstack.demo.figures import StepFigures, TaskFigures
from devstack.demo.verdict import DemoVerdict
from domain.messages import Json

_FAULTS = {
    "latency": "answers late",
    "lost_reply": "does it, and loses the reply",
    "outage": "cuts every connection",
}

_WIDE = 92
"""Columns of a terminal that has room for every heading in full."""


def print_summary(console: Console, verdict: DemoVerdict, seconds: float) -> None:
    """Print it for people."""
    console.print()
    console.print(_headline(verdict, seconds))
    wide = console.width >= _WIDE
    for part in (_tasks(verdict, wide=wide), _broken(verdict), _ledgers(verdict), _checks(verdict)):
        console.print()
        console.print(part)


def as_json(verdict: DemoVerdict, seconds: float) -> Json:
    """The same for programs."""
    return {"ok": verdict.holds, "seconds": round(seconds, 1), **asdict(verdict)}


def _headline(verdict: DemoVerdict, seconds: float) -> Text:
    line = Text(f"{len(verdict.tasks)} tasks in {seconds:.1f} s: ", style="bold")
    for state, count in Counter(t.state for t in verdict.tasks).most_common():
        line.append_text(Text.assemble(f"{count} ", coloured(state), "  "))
    recovered = [t for t in verdict.tasks if t.recoveries]
    line.append(f"{sum(t.recoveries for t in recovered)} recoveries of {len(recovered)} tasks by the Supervisor")
    return line


def _tasks(verdict: DemoVerdict, *, wide: bool) -> Table:
    counts = ("Attempts", "Recoveries") if wide else ("Att.", "Rec.")
    return table(("Task", "State", *counts, "Calls of budget"), (_task(t, wide=wide) for t in verdict.tasks))


def _task(task: TaskFigures, *, wide: bool) -> list[str | Text]:
    calls = Text("  " if wide else " ").join(_step(s) for s in task.steps)
    attempts = Text(str(task.attempts), style="yellow" if task.attempts > 1 else "")
    recoveries = Text(str(task.recoveries), style="yellow") if task.recoveries else Text("0", style="dim")
    return [task.task_id, coloured(task.state), attempts, recoveries, calls]


def _step(step: StepFigures) -> Text:
    said = Text.assemble((f"{step.name} ", "dim"), (str(step.calls), "yellow" if step.calls > 1 else ""))
    said.append(f"/{step.budget}", style="dim")
    if step.undo_calls:
        said.append_text(Text.assemble((" undo ", "dim"), str(step.undo_calls), (f"/{step.undo_budget}", "dim")))
    return said


def _broken(verdict: DemoVerdict) -> Table:
    return table(("Went wrong", "How", "Times"), _mishaps(verdict))


def _mishaps(verdict: DemoVerdict) -> Iterator[list[str | Text]]:
    for fault in verdict.faults:
        yield [fault.service, _FAULTS.get(fault.kind, fault.kind), str(fault.fired)]
    for refusal, count in verdict.refusals.items():
        service, _, reason = refusal.partition(" ")
        yield [service, f"refuses: {reason}", str(count)]
    for kill in verdict.kills:
        yield [kill.process, f"kill -9 of process {kill.pid}, which held {len(kill.held)} tasks", "1"]
    for task_id in verdict.corrected:
        yield [task_id, "had a wrong address; a person corrected it and resubmitted", "1"]


def _ledgers(verdict: DemoVerdict) -> Table:
    headings = ("Ledger", "Calls", "Effects that stand", "Undone", "Tombstones", "Refused", "Replayed")
    return table(
        headings,
        ([s.name, *(str(n) for n in (s.calls, s.live, s.undone, s.tombstones, s.refused, s.replayed))]
         for s in verdict.services),
    )  # fmt: skip


def _checks(verdict: DemoVerdict) -> Table:
    signs = {True: Text("✓", style="green"), False: Text("✗", style="bold red")}
    return table(("", "Checked", "Found"), ([signs[c.holds], c.rule, c.found] for c in verdict.checks))
