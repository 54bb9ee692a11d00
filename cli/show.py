"""`show`: all that is on record about a task, and what happens next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.app import ExitCode, OneId, Output, run
from cli.environment import find_settings, reading
from cli.links import attempt_link
from cli.output import Format, compact, print_json, print_line
from cli.screen import coloured, print_rich, table
from cli.tasks import error_text, task_json, undo_json, undo_table
from domain.messages import Json
from operators.explain import Explanation, explain
from operators.times import instant
from store.rows import Alert, Event, Step


def show(task_id: OneId, output: Output = Format.TEXT) -> ExitCode:
    """Show all that is on record about a task, and what happens next."""
    return run(_show(task_id, output))


async def _show(task_id: str, output: Format) -> ExitCode:
    settings = find_settings()
    async with reading(settings) as reads:
        known = await explain(reads, task_id, settings.sweep_interval)
    link = attempt_link(settings.ui_url, known.page.task)
    if output is Format.JSON:
        print_json(_json(known, link))
    else:
        _print(known, link)
    return ExitCode.OK


def _json(known: Explanation, link: str | None) -> Json:
    def rows(found: Iterable[Any]) -> list[Json]:
        return [{k: v for k, v in row.model_dump().items() if k != "task_id"} for row in found]

    page = known.page
    return task_json(page.task) | {
        "steps": rows(page.steps),
        "undo_log": undo_json(page.undo_log),
        "events": rows(page.events),
        "alerts": rows(page.alerts),
        "blocked_by": page.blocked_by.name if page.blocked_by else None,
        "now": page.now,
        "next": known.next,
        "link": link,
    }


def _print(known: Explanation, link: str | None) -> None:
    page, task = known.page, known.page.task
    print_rich(Text.assemble((task.task_id, "bold"), f"  {task.definition} v{task.version}  ", coloured(task.state)))
    print_line(f"submitted {instant(task.created_at)} by {task.submitter}; {task.epoch} attempts")
    if task.error:
        print_line(f"error: {error_text(task.error)}")
    print_line(f"next: {known.next}")
    if link:
        print_line(f"link: {link}")
    _section("Steps", _steps(page.steps))
    _section("Undo log, last begun first", undo_table(page.undo_log) if page.undo_log else None)
    _section("Events", _events(page.events))
    _section("Alerts", _alerts(page.alerts) if page.alerts else None)


def _section(title: str, body: Table | None) -> None:
    if body is not None:
        print_rich(Text(f"\n{title}", style="bold underline"))
        print_rich(body)


def _steps(steps: Sequence[Step]) -> Table:
    headings = ["step", "state", "calls left", "undo calls left", "failures", "complete by", "result or error"]
    return table(
        headings,
        (
            [
                s.name + (" (pivot)" if s.pivot else ""),
                coloured(s.state),
                f"{s.budget_left} of {s.budget}",
                f"{s.undo_budget_left} of {s.undo_budget}" if s.undo_budget else "-",
                str(s.failure_count),
                instant(s.complete_by),
                error_text(s.error) or compact(s.result),
            ]
            for s in steps
        ),
    )


def _events(events: Sequence[Event]) -> Table:
    return table(["number", "at", "kind", "states", "by", "detail"], (event_row(e) for e in events))


def event_row(event: Event) -> list[str | Text]:
    """An event in cells: number, instant, kind, states, actor, detail; which run wrote it is in the JSON only."""
    detail = {key: value for key, value in event.detail.items() if key != "run_id"}
    moved = event.state_from is not event.state_to and event.state_from is not None
    states = Text.assemble(f"{event.state_from} → " if moved else "", coloured(event.state_to))
    return [str(event.number), instant(event.at), event.kind, states, event.actor, compact(detail)]


def _alerts(alerts: Sequence[Alert]) -> Table:
    return table(["raised", "kind", "message"], ([instant(a.raised_at), a.kind, a.message] for a in alerts))
