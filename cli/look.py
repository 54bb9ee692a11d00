"""`list`, `show`, `wait`: what is on record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.app import ExitCode, Ids, OneId, Output, Timeout, run
from cli.environment import reading, settings
from cli.follow import as_asked, follow
from cli.links import namespace, ui_link
from cli.output import Format, compact, print_json, print_line, print_note
from cli.screen import coloured, print_rich, table
from cli.undo_log import undo_json, undo_lists, undo_table
from domain.faults import NotFound
from domain.ids import attempt_id
from domain.messages import Json
from domain.states import TaskState
from domain.text import clean
from operators.explain import explain
from operators.times import instant
from runtime.settings import Settings
from store.reads import TaskPage
from store.rows import Alert, Compensation, Event, Step, Task

_UNDO = frozenset({TaskState.COMPENSATING, TaskState.COMPENSATION_FAILED})
_OPEN = frozenset(TaskState) - {TaskState.PROCESSED, TaskState.COMPENSATED}


def list_tasks(
    state: Annotated[TaskState | None, typer.Option(case_sensitive=False, help="only tasks in this state")] = None,
    definition: Annotated[str | None, typer.Option(help="only tasks of this definition")] = None,
    unfinished: Annotated[bool, typer.Option("--open", help="only tasks that are neither done nor undone")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="only tasks with an undo to finish, entry by entry")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="how many at most")] = 50,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Show tasks, newest first. Needs the state store only."""
    among = _UNDO if undo else _OPEN if unfinished else frozenset(TaskState)
    wanted = among if state is None else among & {state}
    return run(_list(wanted, clean(definition) if definition else None, undo, limit, output))


def show(task_id: OneId, output: Output = Format.TEXT) -> ExitCode:
    """Show all that is on record about a task, and what happens next."""
    return run(_show(task_id, output))


def wait(task_ids: Ids, timeout: Timeout = 300, output: Output = Format.TEXT) -> ExitCode:
    """Wait until tasks rest; exit code 1 if one ended other than Processed."""
    return run(_wait(task_ids, timeout, output))


async def _list(
    states: frozenset[TaskState], definition: str | None, undo: bool, limit: int, output: Format
) -> ExitCode:
    async with reading(settings()) as reads:
        tasks = await reads.tasks(states=states, definition=definition, limit=limit)
        logs = await reads.undo_logs([t.task_id for t in tasks]) if undo else []
    if output is Format.JSON:
        print_json([_brief(t) | (_undo_of(t, logs) if undo else {}) for t in tasks])
    elif not tasks:
        print_note("no tasks")
    elif undo:
        print_rich(undo_lists(tasks, logs))
    else:
        headings = ["task", "definition", "state", "attempts", "failures", "submitted", "by", "error"]
        print_rich(table(headings, (_list_row(t) for t in tasks)))
    return ExitCode.OK


async def _show(task_id: str, output: Format) -> ExitCode:
    found = settings()
    async with reading(found) as reads:
        known = await explain(reads, task_id, found.sweep_interval)
    link = _link(found, known.page.task)
    if output is Format.JSON:
        print_json(_page_json(known.page, known.next, link))
    else:
        _print_page(known.page, known.next, link)
    return ExitCode.OK


async def _wait(task_ids: Sequence[str], timeout: float, output: Format) -> ExitCode:
    async with reading(settings()) as reads:
        known = {t.task_id for t in await reads.tasks(ids=task_ids, limit=len(task_ids))}
        if missing := [t for t in task_ids if t not in known]:
            raise NotFound(f"there is no task {', '.join(missing)}")
        ending = await follow(reads, task_ids, timeout, output)
    if output is Format.JSON:
        print_json([_brief(t) for t in as_asked(ending.tasks, task_ids)])
    return ending.code


def _link(found: Settings, task: Task) -> str | None:
    if not task.epoch:
        return None
    attempt = attempt_id(task.definition, task.task_id, task.epoch)
    return ui_link(found.ui_url, namespace(), attempt, task.run_id)


def _brief(task: Task) -> Json:
    return task.model_dump(exclude={"record_digest"})


def _undo_of(task: Task, entries: Sequence[Compensation]) -> Json:
    return {"undo_log": undo_json([e for e in entries if e.task_id == task.task_id])}


def _list_row(task: Task) -> list[str | Text]:
    return [
        task.task_id,
        f"{task.definition} v{task.version}",
        coloured(task.state),
        str(task.epoch),
        str(task.failure_count),
        instant(task.created_at),
        task.submitter,
        _message(task.error),
    ]


def _page_json(page: TaskPage, then: str, link: str | None) -> Json:
    def rows(found: Iterable[Any]) -> list[Json]:
        return [{k: v for k, v in row.model_dump().items() if k != "task_id"} for row in found]

    return _brief(page.task) | {
        "steps": rows(page.steps),
        "undo_log": undo_json(page.undo_log),
        "events": rows(page.events),
        "alerts": rows(page.alerts),
        "blocked_by": page.blocked_by.name if page.blocked_by else None,
        "now": page.now,
        "next": then,
        "link": link,
    }


def _print_page(page: TaskPage, then: str, link: str | None) -> None:
    task = page.task
    print_rich(Text.assemble((task.task_id, "bold"), f"  {task.definition} v{task.version}  ", coloured(task.state)))
    print_line(f"submitted {instant(task.created_at)} by {task.submitter}; {task.epoch} attempts")
    if task.error:
        print_line(f"error: {_message(task.error)}")
    print_line(f"next: {then}")
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
                _message(s.error) or compact(s.result),
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


def _message(error: Json | None) -> str:
    return str(error.get("message") or compact(error)) if error else ""
