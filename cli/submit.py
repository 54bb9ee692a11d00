"""`start` and `submit`: messages go in, and a receipt for each comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Annotated

import typer

from cli.app import ExitCode, Output, Timeout, Wait, gravest, run
from cli.environment import find_settings, reading, user
from cli.launch import Launched, launch
from cli.links import attempt_link
from cli.messages import Message, read_messages
from cli.output import Format, print_json, print_note
from cli.receipts import Receipt, print_receipts, take_in
from cli.wait import claimed, follow
from domain.faults import Unreachable, UsageError
from domain.ids import attempt_id
from domain.messages import Json
from domain.text import clean
from runtime.temporal import connection
from runtime.wiring import open_stores
from store.admission import GONE
from store.reads import Reads
from store.rows import Task

CLAIMED_WITHIN = timedelta(seconds=3)

File = Annotated[str, typer.Argument(metavar="FILE|-", help="one JSON object, or one a line; - is standard input")]
Submitter = Annotated[
    str,
    typer.Option(help="who submits, where the message names nobody; default: the user", show_default=False),
]


def start(
    file: File, submitter: Submitter = "", wait: Wait = False, timeout: Timeout = 300, output: Output = Format.TEXT
) -> ExitCode:
    """Submit tasks, and start their runs; --wait follows them to the end."""
    return run(_start(read_messages(file), _submitter(submitter), timeout if wait else None, output))


def submit(
    file: File,
    submitter: Submitter = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="wait up to 3 s for a worker to claim them")] = True,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Submit tasks; whichever live worker has their definition claims and starts them."""
    return run(_submit(read_messages(file), _submitter(submitter), wait, output))


async def _start(messages: list[Message], submitter: str, timeout: float | None, output: Format) -> ExitCode:
    settings = find_settings()
    connection()  # what can't be read is refused before anything is recorded
    async with open_stores(settings) as stores, reading(settings) as reads:
        batch = Batch(settings.ui_url, reads, await take_in(stores.desk, messages, submitter), output)
        with batch.receipted():
            ids = batch.ids
            await _warn_of_no_worker(reads, await batch.tasks())
            launched = await launch(settings, stores, reads, ids) if ids else Launched([])
            batch.codes += [ExitCode.UNREACHABLE] * bool(launched.left)
            await batch.locate(launched.runs)
            if timeout is not None and ids:
                if output is Format.TEXT:
                    batch.print_once()
                batch.codes.append((await follow(reads, ids, timeout, output)).code)
                await batch.locate(launched.runs)
        return gravest(batch.codes)


async def _submit(messages: list[Message], submitter: str, wait: bool, output: Format) -> ExitCode:
    settings = find_settings()
    async with open_stores(settings) as stores, reading(settings) as reads:
        batch = Batch(settings.ui_url, reads, await take_in(stores.desk, messages, submitter), output)
        with batch.receipted():
            if batch.ids and wait:
                await _note_unclaimed(reads, await claimed(reads, batch.ids, CLAIMED_WITHIN))
            await batch.locate({})
        return gravest(batch.codes)


class Batch:
    """Messages that went in together; their receipts are printed once, whatever becomes of the command."""

    def __init__(self, ui_url: str, reads: Reads, receipts: list[Receipt], output: Format) -> None:
        self._ui_url, self._reads, self._receipts, self._output = ui_url, reads, receipts, output
        self.codes = [r.code for r in receipts]
        self.ids = list(dict.fromkeys(r.task_id for r in receipts if r.task_id and r.taken))
        self._is_printed = False

    async def tasks(self) -> Sequence[Task]:
        """The tasks that were taken, as they are now."""
        return await self._reads.tasks(self.ids) if self.ids else []

    async def locate(self, runs: Mapping[str, str | None]) -> None:
        """Add each task's state, and its current or last attempt. `runs`: run ids that are known here."""
        tasks = {t.task_id: t for t in await self.tasks()}
        self._receipts = [
            replace(r, **_run_of(self._ui_url, tasks[r.task_id], runs)) if r.taken and r.task_id in tasks else r
            for r in self._receipts
        ]

    @contextmanager
    def receipted(self) -> Iterator[None]:
        """Print the receipts in any case; that a store can't be reached by then changes the exit code only."""
        try:
            yield
        except Unreachable as error:
            print_note(f"error: {error}")
            self.codes.append(ExitCode.UNREACHABLE)
        finally:
            self.print_once()

    def print_once(self) -> None:
        """Print every receipt, in the order of the messages, unless it has been done."""
        if not self._is_printed:
            self._is_printed = True
            if self._output is Format.JSON:
                print_json([asdict(r) for r in self._receipts])
            else:
                print_receipts(self._receipts)


def _run_of(ui_url: str, task: Task, runs: Mapping[str, str | None]) -> Json:
    attempt = attempt_id(task.definition, task.task_id, task.epoch) if task.epoch else None
    return {"state": task.state, "attempt": attempt, "link": attempt_link(ui_url, task, runs.get(attempt or ""))}


async def _note_unclaimed(reads: Reads, tasks: Sequence[Task]) -> None:
    dead = await _warn_of_no_worker(reads, tasks)
    for task in tasks:
        if task.definition not in dead:
            print_note(f"{task.task_id}: not claimed yet; live workers have its definition, and are busy")


async def _warn_of_no_worker(reads: Reads, tasks: Sequence[Task]) -> set[str]:
    """Say which definitions no live worker has; returns them."""
    alive = {d.name for d, since in await reads.definitions() if since is not None and since < GONE}
    dead = {t.definition for t in tasks if not t.state.is_settled} - alive
    for name in sorted(dead):
        count = sum(t.definition == name for t in tasks)
        print_note(
            f"no live worker has the definition {name!r}: {count} submitted, kept until one runs (`python worker.py`)"
        )
    return dead


def _submitter(given: str) -> str:
    name = clean(given or user()).strip()
    if not 1 <= len(name) <= 128:
        raise UsageError(f"--submitter: 1 to 128 characters, not {given!r}")
    return name
