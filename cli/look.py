"""`list`, `show`, `wait`: what is on record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.app import Code, Ids, OneId, Output, Timeout, run
from cli.environment import namespace, reading, settings
from cli.follow import as_asked, follow
from cli.outlook import outlook
from cli.output import UNDO_WORDS, Format, coloured, compact, instant, out, say, table, tell, tell_json
from domain.faults import NotFound
from domain.ids import attempt_id
from domain.messages import Json
from domain.states import TaskState, UndoState
from domain.text import clean
from runtime.duties import ALIVE
from runtime.settings import Settings
from runtime.temporal import ui_link
from store.reads import Reads, TaskPage
from store.tables import Alert, Compensation, Event, Step, Task

_UNDO_STYLES = {UndoState.UNDONE: "yellow", UndoState.FAILED: "bold red", UndoState.UNDOING: "magenta"}


def list_tasks(
    state: Annotated[TaskState | None, typer.Option(case_sensitive=False, help="only tasks in this state")] = None,
    pipeline: Annotated[str | None, typer.Option(help="only tasks of this pipeline")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="how many at most")] = 50,
    output: Output = Format.TEXT,
) -> Code:
    """Show tasks, newest first."""
    return run(_list(state, clean(pipeline) if pipeline else None, limit, output))


def show(task_id: OneId, output: Output = Format.TEXT) -> Code:
    """Show all that is on record about a task, and what happens next."""
    return run(_show(task_id, output))


def wait(task_ids: Ids, timeout: Timeout = 300, output: Output = Format.TEXT) -> Code:
    """Wait until tasks rest; exit code 1 if one ended other than Processed."""
    return run(_wait(task_ids, timeout, output))


async def _list(state: TaskState | None, pipeline: str | None, limit: int, output: Format) -> Code:
    async with reading(settings()) as reads:
        tasks = await reads.tasks(state=state, definition=pipeline, limit=limit)
    if output is Format.JSON:
        tell_json([_brief(t) for t in tasks])
    elif tasks:
        headings = ["task", "pipeline", "state", "attempts", "failures", "submitted", "by", "error"]
        out().print(table(headings, (_list_row(t) for t in tasks)))
    else:
        say("no tasks")
    return Code.OK


async def _show(task_id: str, output: Format) -> Code:
    found = settings()
    async with reading(found) as reads:
        page = await reads.page(task_id)
        then = outlook(page, live_worker=await _has_worker(reads, page.task), sweep_interval=found.sweep_interval)
    link = _link(found, page.task)
    if output is Format.JSON:
        tell_json(_page_json(page, then, link))
    else:
        _print_page(page, then, link)
    return Code.OK


async def _wait(task_ids: Sequence[str], timeout: float, output: Format) -> Code:
    async with reading(settings()) as reads:
        known = {t.task_id for t in await reads.tasks(ids=task_ids, limit=len(task_ids))}
        if missing := [t for t in task_ids if t not in known]:
            raise NotFound(f"there is no task {', '.join(missing)}")
        ending = await follow(reads, task_ids, timeout, output)
    if output is Format.JSON:
        tell_json([_brief(t) for t in as_asked(ending.tasks, task_ids)])
    return ending.code


async def _has_worker(reads: Reads, task: Task) -> bool:
    return any(
        (row.name, row.version) == (task.definition, task.version) and since < 3 * ALIVE
        for row, since in await reads.definitions()
    )


def _link(found: Settings, task: Task) -> str | None:
    if not task.epoch:
        return None
    attempt = attempt_id(task.definition, task.task_id, task.epoch)
    return ui_link(found.ui_url, namespace(), attempt, task.run_id)


def _brief(task: Task) -> Json:
    return task.model_dump(exclude={"record_digest", "last_seq", "state_version"})


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
        return [{k: v for k, v in row.model_dump().items() if k not in ("task_id", "reservation")} for row in found]

    undo_log = [r | {"outcome": UNDO_WORDS[r["state"]]} for r in rows(reversed(page.undo_log))]
    return _brief(page.task) | {
        "steps": rows(page.steps),
        "undo_log": undo_log,
        "events": rows(page.events),
        "alerts": rows(page.alerts),
        "now": page.now,
        "next": then,
        "link": link,
    }


def _print_page(page: TaskPage, then: str, link: str | None) -> None:
    task = page.task
    tell(Text.assemble((task.task_id, "bold"), f"  {task.definition} v{task.version}  ", coloured(task.state)))
    tell(f"submitted {instant(task.created_at)} by {task.submitter}; {task.epoch} attempts")
    if task.error:
        tell(f"error: {_message(task.error)}")
    tell(f"next: {then}")
    if link:
        tell(f"link: {link}")
    _section("Steps", _steps(page.steps))
    _section("Undo log, last begun first", _undo_log(page.undo_log) if page.undo_log else None)
    _section("Events", _events(page.events))
    _section("Alerts", _alerts(page.alerts) if page.alerts else None)


def _section(title: str, body: Table | None) -> None:
    if body is not None:
        tell(Text(f"\n{title}", style="bold underline"))
        out().print(body)


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


def _undo_log(entries: Sequence[Compensation]) -> Table:
    return table(
        ["seq", "step", "action", "outcome", "undone", "error"],
        (
            [
                str(e.seq),
                e.step,
                e.action,
                Text(UNDO_WORDS[e.state], style=_UNDO_STYLES.get(e.state, "")),
                instant(e.undone_at),
                _message(e.error),
            ]
            for e in reversed(entries)
        ),
    )


def _events(events: Sequence[Event]) -> Table:
    return table(["number", "at", "kind", "states", "by", "detail"], (event_row(e) for e in events))


def event_row(event: Event) -> list[str | Text]:
    """An event in cells: number, instant, kind, states, actor, detail."""
    moved = event.state_from is not event.state_to and event.state_from is not None
    states = Text.assemble(f"{event.state_from} → " if moved else "", coloured(event.state_to))
    return [str(event.number), instant(event.at), event.kind, states, event.actor, compact(event.detail)]


def _alerts(alerts: Sequence[Alert]) -> Table:
    return table(["raised", "kind", "message"], ([instant(a.raised_at), a.kind, a.message] for a in alerts))


def _message(error: Json | None) -> str:
    return str(error.get("message") or compact(error)) if error else ""
