"""`starter.py demo`: real servers, real processes, thirty-three tasks, and everything that can go wrong going wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.app import ExitCode, Output, run
from cli.links import ui_link
from cli.output import Format, print_json
from cli.screen import data_console, note_console
from devstack.demo.board import Board
from devstack.demo.services import SimulatorControl
from devstack.demo.story import Story
from devstack.demo.summary import as_json, print_summary
from devstack.demo.verdict import DemoVerdict, audited, verdict_of
from devstack.stack.embedded import EmbeddedStack
from devstack.stack.environment import NAMESPACE
from devstack.stack.events import StackEvent
from devstack.up import EXAMPLES, Interrupted, StackScreen, running_stack, unless
from domain.faults import NotFound
from domain.ids import attempt_id
from domain.packages import SAMPLES
from domain.states import TaskState
from runtime.wiring import open_stores
from store.reads import open_reads

FILES = ("orders.jsonl", "provisioning.jsonl")

LIVELY = {
    "SAS_SWEEP_INTERVAL": "PT2S",
    "SAS_POLL_INTERVAL": "PT0.5S",
    "SAS_TASK_SLOTS": "6",
    "SAS_CLAIM_WITHIN": "PT5S",
}
"""The workers' settings: few slots, so that there is a queue, and a Supervisor that looks often."""


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="leave everything up afterwards, until Ctrl-C")] = False,
    state_dir: Annotated[
        Path, typer.Option(help="folder for the demo alone; an earlier demo's data in it is deleted")
    ] = Path(".local/demo"),
    output: Output = Format.TEXT,
) -> ExitCode:
    """Run orders through real servers, break services and a worker on purpose, and show what came of it.

    Ends by itself; with exit code 1 if a task is not settled, or an audit of all of them finds a violation.
    """
    return run(_demo(keep, state_dir, output))


async def _demo(keep: bool, state_dir: Path, output: Format) -> ExitCode:
    os.environ[SAMPLES] = "only"  # a demo of ours, whatever packages are installed
    console = note_console()
    screen, board = StackScreen(console), Board(console)

    def on_event(event: StackEvent) -> None:
        (board.stack_event if board.is_open else screen.show)(event)

    stack = EmbeddedStack(state_dir, worker_env=LIVELY, disposable=True, on_event=on_event)
    try:
        async with running_stack(stack) as stop:
            screen.close()
            verdict = await unless(stop, _play(stack, board))
            code = conclude(verdict, board.seconds, output)
            if keep:
                console.print(_where(stack, state_dir, verdict))
                await stop.wait()
    except Interrupted:
        return ExitCode.INTERRUPTED
    return code


def conclude(verdict: DemoVerdict, seconds: float, output: Format) -> ExitCode:
    """Print what came of it; the exit code says whether all of it holds."""
    if output is Format.JSON:
        print_json(as_json(verdict, seconds))
    else:
        print_summary(data_console(), verdict, seconds)
    return ExitCode.OK if verdict.holds else ExitCode.FAILED


async def _play(stack: EmbeddedStack, board: Board) -> DemoVerdict:
    places = stack.addresses
    async with (
        open_stores(places.settings()) as stores,
        open_reads(places.state_url) as reads,
        SimulatorControl(places.simulators_url) as control,
    ):
        submissions = [stores.desk.parse(line) for line in _examples()]
        story = Story(stack, stores, reads, control, board)
        with board:
            moment = await story.run(submissions)
        records = await stores.orders.load([s.task_id for s in submissions])
        return verdict_of(
            moment,
            await audited(places.state_url, places.orders_url, control),
            {task_id: r.record or {} for task_id, r in records.items()},
            await control.sabotages(),
            story.kills,
            story.corrected,
        )


def _examples() -> list[str]:
    missing = [f for f in FILES if not (EXAMPLES / f).exists()]
    if missing:
        raise NotFound(f"{EXAMPLES / missing[0]} is missing")
    return [line for f in FILES for line in (EXAMPLES / f).read_text(encoding="utf-8").splitlines() if line.strip()]


def _where(stack: EmbeddedStack, state_dir: Path, verdict: DemoVerdict) -> Panel:
    held = [task_id for k in verdict.kills for task_id in k.held]
    lines = Table.grid(padding=(0, 2))
    for label, text in (
        ("Temporal UI", f"{stack.addresses.ui_url}/namespaces/{NAMESPACE}/workflows"),
        ("Survived the kill", _link(stack, verdict, held)),
        ("Was corrected", _link(stack, verdict, verdict.corrected)),
        ("Commands", f"export SAS_STATE_DIR={quote(str(state_dir))}; python starter.py list"),
        ("Logs", str(state_dir / "logs")),
    ):
        lines.add_row(Text(label, style="bold"), Text(text, overflow="fold"))
    return Panel(lines, title="Everything is still up", subtitle="Ctrl-C stops it", expand=False)


def _link(stack: EmbeddedStack, verdict: DemoVerdict, task_ids: Sequence[str]) -> str:
    """The last attempt of the first of these tasks that went well, in the Temporal UI."""
    well = [t for t in verdict.tasks if t.task_id in task_ids and t.state is TaskState.PROCESSED]
    found = [attempt_id(t.definition, t.task_id, t.attempts) for t in well]
    return ui_link(stack.addresses.ui_url, NAMESPACE, found[0]) if found else "none"
