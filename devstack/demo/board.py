"""What is shown while the demo runs: a live table on a terminal, and a line for everything worth telling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.output import plain
from cli.screen import coloured, table
from devstack.demo.moment import Moment
from devstack.stack.events import Ready, Restarted, StackEvent
from domain.messages import Json
from domain.states import EventKind, TaskState
from store.rows import Event, Task

Source = Literal["fault", "person", "submitted", "stack", "store"]

_SIGNS: dict[Source, tuple[str, str]] = {
    "fault": ("✗", "bold yellow"),
    "person": ("☞", "bold cyan"),
    "submitted": ("→", "bold"),
    "stack": ("↻", "bold yellow"),
    "store": (" ", ""),
}
_ROUTINE = frozenset({EventKind.CLAIMED, EventKind.PROCESSED})
"""Told only where no table shows them."""

_FIRST = (TaskState.ERROR, TaskState.COMPENSATING, TaskState.PROCESSING, TaskState.PENDING)
_ROOM_FOR_LINES = 15
"""Lines of a terminal that the table leaves free for what is told above it."""

_MOST_IDS = 3
_LONGEST = 80


class Board:
    """Shows how things stand and tells lines, with the seconds since the demo's tasks began. Use it with `with`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self._began = self._ended = 0.0
        self.is_open = False
        self._told: dict[str, int] = {}

    def __enter__(self) -> Board:
        self._began = monotonic()
        self.is_open = True
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = monotonic()
        self.is_open = False
        if self._live is not None:
            self._live.stop()

    @property
    def seconds(self) -> float:
        """How long the demo's tasks have been at it, or were."""
        return (monotonic() if self.is_open else self._ended) - self._began

    def tell(self, source: Source, text: str) -> None:
        """Tell something in a line."""
        sign, style = _SIGNS[source]
        line = Table.grid(padding=(0, 1))
        line.add_row(
            Text(f"{self.seconds:5.1f} s", style="dim"), Text(sign, style=style), Text(plain(text), style=style)
        )
        self._console.print(line)

    def stack_event(self, event: StackEvent) -> None:
        """Tell that a process was started again, and that it works again."""
        with suppress(OSError):
            match event:
                case Restarted(part, _, _, pause, error, _):
                    self.tell("stack", f"{part} {error or f'started again after {pause:g} s'}")
                case Ready(part, detail, seconds):
                    self.tell("stack", f"{part} {detail}, {seconds:.1f} s after it was lost")
                case _:
                    pass

    def show(self, moment: Moment) -> None:
        """Show how things stand, and tell what happened since the last time."""
        for text, events in self._news(moment).items():
            self.tell("store", f"{_names([e.task_id for e in events])}: {text}")
        if self._live is not None:
            self._live.update(self._render(moment), refresh=True)

    def _news(self, moment: Moment) -> dict[str, list[Event]]:
        """New events by what they say, so that what happened to many is one line."""
        found: dict[str, list[Event]] = {}
        for event in moment.events:
            if event.number <= self._told.get(event.task_id, 0):
                continue
            self._told[event.task_id] = event.number
            routine = event.kind in _ROUTINE and event.epoch == 1
            if (text := _said(event)) and not (routine and self._live is not None):
                found.setdefault(text, []).append(event)
        return found

    def _render(self, moment: Moment) -> Group:
        room = max(5, self._console.height - _ROOM_FOR_LINES)
        shown = _most_telling(moment.tasks, room)
        rows = [_row(moment, t) for t in shown]
        states = Counter(t.state for t in moment.tasks)
        line = Text(f"{self.seconds:4.0f} s  ", style="dim")
        for state in TaskState:
            if states[state]:
                line.append_text(Text.assemble(f"{states[state]} ", coloured(state), "  "))
        if len(shown) < len(moment.tasks):
            line.append(f"({len(moment.tasks) - len(shown)} not shown)", style="dim")
        headings = ("Task", "Definition", "State", "Step", "Attempts", "Calls of budget")
        return Group(Text(), table(headings, rows), Text(), line)


def _row(moment: Moment, task: Task) -> list[str | Text]:
    calls = f"{moment.calls_of(task)} of {moment.budget_of(task)}"
    step = moment.step_at_work(task)
    return [task.task_id, task.definition, coloured(task.state), step, str(task.epoch), calls]


def _most_telling(tasks: Sequence[Task], room: int) -> list[Task]:
    """As many tasks as there is room for, those at work first; in the order of their ids."""
    ranked = sorted(tasks, key=lambda t: (_FIRST.index(t.state) if t.state in _FIRST else len(_FIRST), t.task_id))
    return sorted(ranked[:room], key=lambda t: t.task_id)


def _said(event: Event) -> str:
    """What an event says to a person; empty if it is nothing worth telling."""
    words = _WORDS.get(event.kind)
    return words(event, event.detail) if words else ""


_WORDS: Mapping[EventKind, Callable[[Event, Json], str]] = {
    EventKind.CLAIMED: lambda e, _: _begins(e),
    EventKind.PROCESSED: lambda e, _: _ends(e),
    EventKind.FAILED: lambda e, d: f"step {d['step']} is refused for good ({d['code']}) {_arrow(e)}",
    EventKind.GAVE_UP: lambda _, d: f"step {d['step']} waits for the Supervisor: {_short(d['cause'])}",
    EventKind.RELEASED: lambda e, d: f"released: {_short(d['cause'])} {_arrow(e)}",
    EventKind.EXPIRED: lambda e, d: f"recovered by the Supervisor: {_short(d['cause'])} {_arrow(e)}",
    EventKind.UNDO_ADVANCED: lambda _, d: f"step {d['undone']} undone" if "undone" in d else "",
    EventKind.COMPENSATED: lambda e, _: _ends(e),
    EventKind.UNDO_FAILED: lambda e, _: _ends(e),
    EventKind.RESUBMITTED: lambda e, _: f"resubmitted by {e.actor} {_arrow(e)}",
}


def _begins(event: Event) -> str:
    if event.state_to is TaskState.COMPENSATING:
        return f"compensation begins, attempt {event.epoch}"
    return "claimed" if event.epoch == 1 else f"attempt {event.epoch} begins"


def _ends(event: Event) -> str:
    return event.state_to.value if event.epoch == 1 else f"{event.state_to.value}, in attempt {event.epoch}"


def _arrow(event: Event) -> str:
    return f"→ {event.state_to.value}"


def _short(text: object) -> str:
    said = str(text)
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def _names(task_ids: Sequence[str]) -> str:
    names = list(dict.fromkeys(task_ids))
    more = len(names) - _MOST_IDS
    return ", ".join(names[:_MOST_IDS]) + (f" and {more} more" if more > 0 else "")
