"""`starter.py up`: everything on this machine, kept running in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TypeVar, assert_never

import typer
from rich.console import Console
from rich.panel import Panel
from rich.status import Status
from rich.table import Table
from rich.text import Text

from cli.app import ExitCode, Output, run
from cli.output import Format, plain, print_json, print_note
from cli.screen import note_console
from devstack.processes.parent import die_with_recorded_parent
from devstack.processes.records import EmbeddedServerError
from devstack.stack.embedded import EmbeddedStack
from devstack.stack.events import Died, Ready, Restarted, StackEvent, Starting, Stopped, Stopping
from domain.faults import Unreachable
from domain.packages import SAMPLES
from runtime.settings import read_settings, unknown_settings

Result = TypeVar("Result")

_TERMINAL_EVERY_S = 0.5
DEFAULT_STATE_DIR = Path(".local")
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Interrupted(Exception):
    """Ctrl-C or SIGTERM came before the end."""


def up(
    state_dir: Annotated[
        Path, typer.Option(envvar="SAS_STATE_DIR", help="folder for data, logs and addresses")
    ] = DEFAULT_STATE_DIR,
    workers: Annotated[int, typer.Option(min=1, max=32, help="how many worker processes")] = 2,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Start PostgreSQL, Temporal, simulated services and workers here, and keep them running until Ctrl-C.

    With -o json, one object with all addresses goes to standard output once everything is ready.
    """
    return run(_up(state_dir, workers, output))


async def _up(state_dir: Path, workers: int, output: Format) -> ExitCode:
    console = note_console()
    screen = StackScreen(console)
    stack = EmbeddedStack(state_dir, workers=workers, on_event=screen.show)
    try:
        async with running_stack(stack) as stop:
            screen.close()
            if output is Format.JSON:
                print_json(description(stack), lines=True)
            else:
                console.print(_welcome(stack, state_dir))
            await stop.wait()
    except Interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def description(stack: EmbeddedStack) -> dict[str, Any]:
    """What other programs need to know of a stack that is up. The secrets are in its `env_file`."""
    places = stack.addresses
    return {
        "state_dir": str(places.state_dir),
        "env_file": str(stack.environment_file),
        "postgres": places.postgres,
        "temporal": places.temporal,
        "ui": places.ui_url,
        "simulators": places.simulators_url,
        "callbacks": places.callback_url,
        "pids": {"up": os.getpid(), **stack.pids()},
    }


@asynccontextmanager
async def running_stack(stack: EmbeddedStack) -> AsyncIterator[asyncio.Event]:
    """The stack, up and kept running for as long as the context lasts, then stopped whatever happened.

    Yields:
        An event that Ctrl-C, SIGTERM, a terminal that is gone, or the end of the process named in SAS_PARENT_PID sets.
        A second Ctrl-C does not wait for work to finish.

    Raises:
        UsageError: A setting, which the workers would share, can't be used.
        Interrupted: It came while the stack was starting.
        Conflict: The stack is up already.
        Unreachable: A part did not come up.
    """
    os.environ.setdefault(SAMPLES, "1")  # the simulated services are theirs
    read_settings()
    for remark in unknown_settings():
        print_note(f"warning: {remark}")
    stop = _stopped_by_signals(stack)
    die_with_recorded_parent()
    hung_up = asyncio.create_task(_watch_terminal(stop))
    try:
        await unless(stop, stack.start())
        keeper = asyncio.create_task(stack.keep())
        keeper.add_done_callback(lambda _: stop.set())
        try:
            yield stop
        finally:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
    except EmbeddedServerError as error:
        raise Unreachable(str(error)) from error
    finally:
        hung_up.cancel()
        stop.set()
        await stack.stop()


def _stopped_by_signals(stack: EmbeddedStack) -> asyncio.Event:
    stop = asyncio.Event()

    def interrupt() -> None:
        if stop.is_set():
            stack.kill_members()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    if not _is_to_outlive_its_terminal():
        loop.add_signal_handler(signal.SIGHUP, stop.set)  # it comes several times as a terminal closes
    return stop


def _is_to_outlive_its_terminal() -> bool:
    """Whether `nohup` started us."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and not sys.stderr.isatty()


async def _watch_terminal(stop: asyncio.Event) -> None:
    """Set `stop` once the terminal that we were started from is gone: a job in the background gets no signal then."""
    if _is_to_outlive_its_terminal() or not _has_terminal():
        return
    while _has_terminal():  # noqa: ASYNC110 (the kernel offers no event for it)
        await asyncio.sleep(_TERMINAL_EVERY_S)
    stop.set()


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def unless(stop: asyncio.Event, work: Awaitable[Result]) -> Result:
    """Result of the work. Raises `Interrupted` if `stop` is set first; the work is cancelled then."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Interrupted
        return working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait((working, stopping))


class StackScreen:
    """Tells on a console what happens to a stack: a line for each part that comes up, dies or returns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def show(self, event: StackEvent) -> None:
        """Tell one event. A terminal that is gone is no reason not to go on."""
        with suppress(OSError):
            self._show(event)

    def close(self) -> None:
        """Nothing more is being started."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, event: StackEvent) -> None:
        match event:
            case Starting(part):
                self._spin(f"starting {part}")
            case Ready(part, detail, seconds):
                self._line("✓", "green", part, f"{detail} ({seconds:.1f} s)")
            case Died(part, how):
                self._line("✗", "red", part, how)
            case Restarted():
                self._show_restart(event)
            case Stopping():
                self._spin("stopping everything")
            case Stopped(seconds):
                self.close()
                self._line("✓", "green", "Stopped", f"in {seconds:.1f} s, nothing is left running")
            case _:
                assert_never(event)

    def _show_restart(self, event: Restarted) -> None:
        if event.error is not None:
            self._line("✗", "red", event.part, f"could not be started: {event.error}")
            return
        again = f"started again after {event.pause:g} s"
        self._line("↻", "yellow", event.part, f"{again}, for the {event.deaths}. time" if event.deaths > 1 else again)
        if event.deaths > 1 and event.last_words:
            self._console.print(Text(plain(event.last_words), style="dim"), soft_wrap=True)

    def _line(self, sign: str, style: str, part: str, text: str) -> None:
        line = Text.assemble((sign, style), " ", (part, "bold"), " ", plain(text))
        self._console.print(line, soft_wrap=True)

    def _spin(self, text: str) -> None:
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)


def _welcome(stack: EmbeddedStack, state_dir: Path) -> Panel:
    rows = [
        ("Temporal UI", stack.addresses.ui_url),
        ("Run orders", f"python starter.py start {quote(os.path.relpath(EXAMPLES))}/orders.jsonl --wait"),
        ("Watch them", "python starter.py watch"),
        ("Logs", str(state_dir / "logs")),
    ]
    if state_dir != DEFAULT_STATE_DIR:
        rows.insert(1, ("First", f"export SAS_STATE_DIR={quote(str(state_dir))}"))
    lines = Table.grid(padding=(0, 2))
    for label, text in rows:
        lines.add_row(Text(label, style="bold"), Text(text))
    return Panel(lines, title="Everything is up", subtitle="Ctrl-C stops it; the data stays", expand=False)
