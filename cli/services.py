"""`services`: the circuit breakers of remote services, and a person's word on them. Needs the state store only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from cli.app import By, ExitCode, Output, required_text, run
from cli.environment import find_settings, reading, requester
from cli.output import Format, print_json, print_line
from cli.screen import print_rich, table
from domain.faults import UsageError
from domain.messages import Json
from domain.text import clean
from operators.services import KnownServices, force, has_moved, look_up, next_probe, state_of
from operators.times import instant
from runtime.wiring import breaker_terms, open_state_store
from store.breakers import CircuitBreakers, Forced
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
) -> ExitCode:
    """Show the circuit breakers of remote services, of one with what moved it; or open or close one by hand."""
    words: dict[Forced | None, bool] = {"open": open_it, "closed": close_it, None: auto}
    wanted = [word for word, given in words.items() if given]
    if len(wanted) > 1:
        raise UsageError("give one of --open, --close and --auto")
    if not wanted:
        return run(_show(name and clean(name), output))
    if name is None:
        raise UsageError("say which service: python starter.py services NAME ...")
    return run(_force(clean(name), wanted[0], requester(by), required_text("--reason", reason), output))


async def _show(name: str | None, output: Format) -> ExitCode:
    async with reading(find_settings()) as reads:
        _print(await look_up(reads, name), output)
    return ExitCode.OK


async def _force(name: str, forced: Forced | None, requester: str, reason: str, output: Format) -> ExitCode:
    settings = find_settings()
    async with open_state_store(settings, size=2) as store, reading(settings) as reads:
        breakers = CircuitBreakers(store.database, breaker_terms(settings))
        _print(await force(breakers, reads, name, forced, requester=requester, reason=reason), output)
    return ExitCode.OK


def _print(known: KnownServices, output: Format) -> None:
    if output is Format.JSON:
        moves = {} if known.moves is None else {"moves": [m.model_dump() for m in known.moves]}
        print_json([_json(r, known.now) | moves for r in known.rows])
        return
    headings = ["service", "breaker", "since", "failures in a row", "cause", "next probe", "probing", "by hand"]
    print_rich(table(headings, (_row(r, known.now) for r in known.rows)))
    if known.moves:
        print_line("")
        print_rich(table(["at", "what", "from", "to", "task", "why"], map(_move, known.moves)))


def _move(event: ServiceEvent) -> list[str | Text]:
    why = f"{event.requester}: {event.reason}" if event.requester else event.cause or ""
    return [instant(event.at), event.kind, event.state_from, event.state_to, event.task_id or "", why]


def _json(row: ServiceRow, now: datetime) -> Json:
    return row.model_dump() | {"holds": state_of(row), "since": row.since if has_moved(row) else None, "now": now}


def _row(row: ServiceRow, now: datetime) -> list[str | Text]:
    state = state_of(row)
    return [
        row.name,
        Text(state, style=_STYLES[state]),
        instant(row.since) if has_moved(row) else "",
        str(row.failures),
        row.cause or "" if row.failures else "",
        next_probe(row, now) if row.state == "open" and row.forced is None else "",
        row.probe_task or "",
        f"{row.forced or 'auto'} by {row.forced_by}: {row.forced_reason}" if row.forced_by else "",
    ]
