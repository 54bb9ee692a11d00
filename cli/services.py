"""`services`: the circuit breakers of remote services, and a person's word on them. Needs the state store only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from cli.app import By, Code, Output, run, said
from cli.environment import reading, requester, settings
from cli.output import Format, instant, tell, tell_json
from cli.screen import draw, table
from domain.faults import NotFound, UsageError
from domain.messages import Json
from domain.text import clean
from runtime.wiring import breaker_terms, open_state_store
from store.breakers import Forced, Services
from store.reads import Reads
from store.rows import ServiceEvent, ServiceRow

_STYLES = {"open": "bold red", "closed": "green"}

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="service; all by default")]
Open = Annotated[bool, typer.Option("--open", help="let no task call it, whatever it answers")]
Close = Annotated[bool, typer.Option("--close", help="let tasks call it, whatever it answers")]
Auto = Annotated[bool, typer.Option("--auto", help="leave it to its breaker again, which starts closed")]
Why = Annotated[str, typer.Option("--reason", help="why; kept with the service")]


def services(
    name: Name = None,
    open_it: Open = False,
    close_it: Close = False,
    auto: Auto = False,
    reason: Why = "",
    by: By = "",
    output: Output = Format.TEXT,
) -> Code:
    """Show the circuit breakers of remote services, of one with what moved it; or open or close one by hand."""
    words: dict[Forced | None, bool] = {"open": open_it, "closed": close_it, None: auto}
    wanted = [word for word, given in words.items() if given]
    if len(wanted) > 1:
        raise UsageError("give one of --open, --close and --auto")
    if not wanted:
        return run(_show(name and clean(name), output))
    if name is None:
        raise UsageError("say which service: python starter.py services NAME ...")
    return run(_force(clean(name), wanted[0], requester(by), said("--reason", reason), output))


def state_of(service: ServiceRow) -> str:
    """`open` or `closed`, as it holds for tasks: a person's word before the breaker's own judgement."""
    return service.forced or service.state


@dataclass(frozen=True)
class _Known:
    """All services, or the one that was named with what last moved its breaker; and the time now."""

    rows: Sequence[ServiceRow]
    moves: Sequence[ServiceEvent] | None
    now: datetime


async def _show(name: str | None, output: Format) -> Code:
    async with reading(settings()) as reads:
        _tell(await _known(reads, name), output)
    return Code.OK


async def _force(name: str, forced: Forced | None, requester: str, reason: str, output: Format) -> Code:
    found = settings()
    async with open_state_store(found, size=2) as store, reading(found) as reads:
        await _known(reads, name)
        breakers = Services(store.database, breaker_terms(found))
        await breakers.force(name, forced, requester=requester, reason=reason)
        _tell(await _known(reads, name), output)
    return Code.OK


async def _known(reads: Reads, name: str | None) -> _Known:
    rows, now = await reads.services()
    if name is None:
        return _Known(rows, None, now)
    found = [r for r in rows if r.name == name]
    if not found:
        there_are = ", ".join(r.name for r in rows) or "none yet: a worker that starts puts its definitions on record"
        raise NotFound(f"no definition needs a service {name!r} (there are: {there_are})")
    return _Known(found, await reads.breaker_moves(name), now)


def _tell(known: _Known, output: Format) -> None:
    if output is Format.JSON:
        moves = {} if known.moves is None else {"moves": [m.model_dump() for m in known.moves]}
        tell_json([_json(r, known.now) | moves for r in known.rows])
        return
    headings = ["service", "breaker", "since", "failures in a row", "cause", "next probe", "probing", "by hand"]
    draw(table(headings, (_row(r, known.now) for r in known.rows)))
    if known.moves:
        tell("")
        draw(table(["at", "what", "from", "to", "task", "why"], map(_move, known.moves)))


def _move(event: ServiceEvent) -> list[str | Text]:
    why = f"{event.requester}: {event.reason}" if event.requester else event.cause or ""
    return [instant(event.at), event.kind, event.state_from, event.state_to, event.task_id or "", why]


def _json(row: ServiceRow, now: datetime) -> Json:
    found: dict[str, Any] = row.model_dump()
    return found | {"holds": state_of(row), "since": row.since if _is_moved(row) else None, "now": now}


def _row(row: ServiceRow, now: datetime) -> list[str | Text]:
    state = state_of(row)
    return [
        row.name,
        Text(state, style=_STYLES[state]),
        instant(row.since) if _is_moved(row) else "",
        str(row.failures),
        row.cause or "" if row.failures else "",
        next_probe(row, now) if row.state == "open" and row.forced is None else "",
        row.probe_task or "",
        f"{row.forced or 'auto'} by {row.forced_by}: {row.forced_reason}" if row.forced_by else "",
    ]


def next_probe(row: ServiceRow, now: datetime) -> str:
    """When an open breaker lets the next task through."""
    if row.probe_until is not None and row.probe_until > now:
        return f"by {instant(row.probe_until)}, when the present one must have answered"
    return f"at {instant(row.retry_at)}" if row.retry_at and row.retry_at > now else "with the next task that needs it"


def _is_moved(row: ServiceRow) -> bool:
    return row.state == "open" or row.forced_by is not None
