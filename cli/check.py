"""`check`: what definitions will do. Needs neither database nor Temporal."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.app import ExitCode, Output
from cli.environment import find_settings
from cli.output import Format, print_json, print_line
from cli.screen import print_rich, table
from definitions import registry
from domain.faults import NotFound
from operators.forecast import Forecast, StepForecast, forecast
from operators.times import duration

Name = Annotated[str | None, typer.Argument(metavar="NAME", help="definition; all in short by default")]


def check(name: Name = None, output: Output = Format.TEXT) -> ExitCode:
    """Check the definitions against their Agents, and show what one will do: order, undo, worst case, duties.

    Exit code 2 if one must not be run.
    """
    sweep_interval = find_settings().sweep_interval
    known = registry()
    wanted = known.names() if name is None else [name]
    found = [d for d in map(known.newest, wanted) if d is not None]
    if not found:
        raise NotFound(f"there is no definition {name!r} (there are: {', '.join(known.names())})")
    forecasts = [forecast(d, sweep_interval) for d in found]
    if output is Format.JSON:
        print_json([f.model_dump() for f in forecasts])
    elif name is None:
        _print_all(forecasts)
    else:
        _print_one(forecasts[0])
    return ExitCode.OK


def _print_all(found: list[Forecast]) -> None:
    headings = ["definition", "version", "record", "steps", "pivot", "most calls", "longest", "services"]
    rows = [
        [
            f.definition,
            str(f.version),
            f.record,
            " → ".join(s.name for s in f.steps),
            f.pivot or "",
            f"{f.most_calls}, undo {f.undo_most_calls}",
            f"{duration(f.longest)}, undo {duration(f.undo_longest)}",
            ", ".join(s.name for s in f.services),
        ]
        for f in found
    ]
    print_rich(table(headings, rows))


def _print_one(found: Forecast) -> None:
    print_line(f"{found.definition} v{found.version}, of a record {found.record}\n")
    headings = ["step", "after", "action", "within", "calls", "most", "longest", "refused", "spent", "undo", "most"]
    print_rich(table(headings, map(_step, found.steps)))
    print_line("")
    for label, text in (*_bounds(found), *_places(found)):
        print_line(f"{label:<12}{text}")
    print_line("\nFor the guarantees to hold, services must")
    for duty, names in _duties(found).items():
        print_line(f"- {duty}: {', '.join(names)}")


def _step(step: StepForecast) -> list[str]:
    return [
        step.name + " (pivot)" * step.pivot,
        ", ".join(step.after),
        step.action,
        duration(step.within),
        str(step.calls),
        f"{step.most_calls} in {step.most_attempts} attempts",
        duration(step.longest),
        step.if_refused,
        step.if_spent,
        step.undo or "",
        f"{step.undo_most_calls}, {duration(step.undo_longest)}" if step.undo else "",
    ]


def _bounds(found: Forecast) -> list[tuple[str, str]]:
    no_way_back = f"once {found.pivot} has begun, the task can only go forward"
    return [
        ("undo order", ", ".join(found.undo_order) or "nothing is undone"),
        ("not undone", ", ".join(found.not_undone) or "none"),
        ("pivot", no_way_back if found.pivot else "none: it can be undone to the end"),
        (
            "at most",
            f"{found.most_calls} calls in {duration(found.longest)}, while all that we run is up",
        ),
        ("its undo", f"{found.undo_most_calls} calls in {duration(found.undo_longest)}"),
    ]


def _places(found: Forecast) -> list[tuple[str, str]]:
    places: dict[tuple[str, str], list[str]] = {}
    for step in found.steps:
        places.setdefault((f"on {step.queue}" if step.queue else "inline", step.why_there), []).append(step.name)
    return [(where, f"{', '.join(names)}, {why}") for (where, why), names in places.items()]


def _duties(found: Forecast) -> dict[str, list[str]]:
    """Names of services by what they must do."""
    duties: dict[str, list[str]] = {}
    for service in found.services:
        for duty in service.must:
            duties.setdefault(duty, []).append(service.name)
    return duties
