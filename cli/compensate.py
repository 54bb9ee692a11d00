"""`compensate`: ask for the undo of a task. A row is edited; workers do the work."""

from __future__ import annotations

from cli.app import By, ExitCode, OneId, Output, Reason, Timeout, Wait, required_text, run
from cli.environment import find_settings, reading, requester
from cli.output import Format, print_json, print_line, print_note
from cli.wait import follow
from domain.faults import NotFound
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.wiring import open_state_store

_VERDICTS = {"past_pivot": ExitCode.CONFLICT, "not_holder": ExitCode.CONFLICT, "not_found": ExitCode.NOT_FOUND}


def compensate(
    task_id: OneId,
    reason: Reason,
    by: By = "",
    wait: Wait = False,
    timeout: Timeout = 300,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Ask for the undo of a task, in whatever state it is."""
    request = UndoRequest(task_id=task_id, requester=requester(by), reason=required_text("--reason", reason))
    return run(_compensate(request, timeout if wait else None, output))


async def _compensate(request: UndoRequest, timeout: float | None, output: Format) -> ExitCode:
    settings, task_id = find_settings(), request.task_id
    async with open_state_store(settings, size=2) as store, reading(settings) as reads:
        verdict = await store.requests.undo(request)
        code = _VERDICTS.get(verdict.verdict, ExitCode.OK)
        if code is ExitCode.NOT_FOUND:
            raise NotFound(verdict.message)
        if code is ExitCode.CONFLICT:
            print_note(f"error: {verdict.message}")
        elif output is Format.TEXT:
            print_line(f"{task_id}: {verdict.verdict}: {verdict.message}; it is {verdict.state}")
        state = verdict.state
        if timeout is not None and code is ExitCode.OK:
            ending = await follow(reads, [task_id], timeout, output, good=TaskState.COMPENSATED)
            code, state = ending.code, ending.tasks[0].state
    if output is Format.JSON:
        print_json(verdict.model_dump(mode="json") | {"state": state})
    return code
