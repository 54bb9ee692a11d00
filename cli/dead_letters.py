"""`dead-letters`: submissions that contradict what is on record, which nothing was overwritten with."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.app import ExitCode, Output, run
from cli.environment import find_settings, reading
from cli.output import Format, print_json, print_line, print_note
from cli.screen import print_rich, table
from operators.times import instant

_Number = Annotated[
    int | None, typer.Argument(metavar="NUMBER", min=1, max=2**63 - 1, help="letter to show with its message")
]


def dead_letters(
    number: _Number = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="only letters about this task")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="how many at most")] = 50,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Show submissions that were not taken because they contradict the record of their id, newest first."""
    return run(_list(task, limit, output) if number is None else _show(number, output))


async def _list(task: str | None, limit: int, output: Format) -> ExitCode:
    async with reading(find_settings()) as reads:
        letters = await reads.dead_letters(task, limit)
    if output is Format.JSON:
        print_json([letter.model_dump() for letter in letters])
    elif not letters:
        print_note("no dead letters")
    else:
        rows = ([str(x.id), instant(x.received_at), x.task_id, x.submitter, x.reason] for x in letters)
        print_rich(table(["number", "received", "task", "by", "reason"], rows))
    return ExitCode.OK


async def _show(number: int, output: Format) -> ExitCode:
    async with reading(find_settings()) as reads:
        letter = await reads.dead_letter(number)
    if output is Format.TEXT:
        print_line(f"dead letter {letter.id} about {letter.task_id}, received {instant(letter.received_at)}")
        print_line(f"by {letter.submitter}: {letter.reason}")
        print_line("message:")
    print_json(letter.model_dump() if output is Format.JSON else letter.message)
    return ExitCode.OK
