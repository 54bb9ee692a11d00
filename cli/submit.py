"""`start` and `submit`: messages go in, and each is answered for: taken, taken already, or why not."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Annotated, Literal

import typer

from cli.app import ExitCode, Output, Timeout, Wait, gravest, run
from cli.environment import settings, user
from cli.follow import claimed, follow
from cli.launch import Launched, launch
from cli.links import namespace, ui_link
from cli.messages import Message, read_messages
from cli.output import Format, plain, print_json, print_line, print_note
from domain.faults import Unreachable, UsageError
from domain.ids import attempt_id
from domain.messages import Json
from domain.states import TaskState
from domain.text import clean
from runtime.settings import Settings, address
from runtime.temporal import connection
from runtime.wiring import Stores, open_stores
from store.admission import ALIVE
from store.reads import Reads, open_reads
from store.rows import Task
from store.submission import Accepted, Conflict, InvalidSubmission, Refused, SubmissionDesk, Verdict

CLAIMED_WITHIN = timedelta(seconds=3)

_CODES = {
    "accepted": ExitCode.OK,
    "already accepted": ExitCode.OK,
    "invalid": ExitCode.USAGE,
    "conflict": ExitCode.CONFLICT,
    "refused": ExitCode.CONFLICT,
    "unreachable": ExitCode.UNREACHABLE,
    "not tried": ExitCode.UNREACHABLE,
    "failed": ExitCode.BUG,
}


@dataclass(frozen=True)
class Answer:
    """What became of one message."""

    line: int
    task_id: str | None
    verdict: Literal[
        "accepted", "already accepted", "invalid", "conflict", "refused", "unreachable", "not tried", "failed"
    ]
    message: str = ""
    problems: tuple[str, ...] = ()
    retry_after_s: float | None = None
    state: TaskState | None = None
    attempt: str | None = None
    link: str | None = None

    @property
    def code(self) -> ExitCode:
        """Its share in the exit code."""
        return _CODES[self.verdict]

    @property
    def taken(self) -> bool:
        """Whether both records are there."""
        return self.code is ExitCode.OK


File = Annotated[str, typer.Argument(metavar="FILE|-", help="one JSON object, or one a line; - is standard input")]
Submitter = Annotated[
    str,
    typer.Option(help="who submits, where the message names nobody; default: the user", show_default=False),
]


def start(
    file: File, submitter: Submitter = "", wait: Wait = False, timeout: Timeout = 300, output: Output = Format.TEXT
) -> ExitCode:
    """Submit tasks, and start their runs; --wait follows them to the end."""
    return run(_start(read_messages(file), _submitter(submitter), timeout if wait else None, output))


def submit(
    file: File,
    submitter: Submitter = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="wait up to 3 s for a worker to claim them")] = True,
    output: Output = Format.TEXT,
) -> ExitCode:
    """Submit tasks; whichever live worker has their definition claims and starts them."""
    return run(_submit(read_messages(file), _submitter(submitter), wait, output))


async def _start(messages: list[Message], submitter: str, timeout: float | None, output: Format) -> ExitCode:
    found = settings()
    connection()  # what can't be read is refused before anything is recorded
    async with open_stores(found) as stores, open_reads(address(found, "database_url")) as reads:
        batch = Batch(found, reads, await _take_in(stores, messages, submitter), output)
        with batch.answered():
            ids = batch.ids
            await _warn_of_no_worker(stores, await batch.tasks())
            launched = await launch(found, stores, reads, ids) if ids else Launched([])
            batch.codes += [ExitCode.UNREACHABLE] * bool(launched.left)
            await batch.locate(launched.runs)
            if timeout is not None and ids:
                if output is Format.TEXT:
                    batch.answer()
                batch.codes.append((await follow(reads, ids, timeout, output)).code)
                await batch.locate(launched.runs)
        return gravest(batch.codes)


async def _submit(messages: list[Message], submitter: str, wait: bool, output: Format) -> ExitCode:
    found = settings()
    async with open_stores(found) as stores, open_reads(address(found, "database_url")) as reads:
        batch = Batch(found, reads, await _take_in(stores, messages, submitter), output)
        with batch.answered():
            if batch.ids and wait:
                await _say_unclaimed(stores, await claimed(reads, batch.ids, CLAIMED_WITHIN))
            await batch.locate({})
        return gravest(batch.codes)


class Batch:
    """What became of messages that went in together: answered for once, whatever becomes of the rest of the command."""

    def __init__(self, found: Settings, reads: Reads, answers: list[Answer], output: Format) -> None:
        self._settings, self._reads, self._answers, self._output = found, reads, answers, output
        self.codes = [a.code for a in answers]
        self.ids = list(dict.fromkeys(a.task_id for a in answers if a.task_id and a.taken))
        self._is_answered = False

    async def tasks(self) -> Sequence[Task]:
        """The tasks that were taken, as they are now."""
        return await self._reads.tasks(ids=self.ids, limit=len(self.ids)) if self.ids else []

    async def locate(self, runs: Mapping[str, str | None]) -> None:
        """Add each task's state, and its current or last attempt. `runs`: run ids that are known here."""
        tasks = {t.task_id: t for t in await self.tasks()}
        self._answers = [
            replace(a, **_place(self._settings, tasks[a.task_id], runs)) if a.taken and a.task_id in tasks else a
            for a in self._answers
        ]

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Answer at the end at the latest. That a store can't be reached any more changes the exit code only."""
        try:
            yield
        except Unreachable as error:
            print_note(f"error: {error}")
            self.codes.append(ExitCode.UNREACHABLE)
        finally:
            self.answer()

    def answer(self) -> None:
        """Print every answer, in the order of the messages, unless it has been done."""
        if not self._is_answered:
            self._is_answered = True
            if self._output is Format.JSON:
                print_json([asdict(a) for a in self._answers])
            else:
                _print(self._answers)


async def _take_in(stores: Stores, messages: list[Message], submitter: str) -> list[Answer]:
    """Submit one after the other, as they came; a bad one does not keep the others."""
    answers: list[Answer] = []
    for message in messages:
        answer = await _one(stores.desk, message, submitter)
        answers.append(answer)
        if not answer.taken:
            who = f" task {answer.task_id}:" if answer.task_id else ""
            for text in answer.problems or (answer.message,):
                print_note(f"line {message.line}:{who} {text}")
        if answer.verdict == "unreachable":
            rest = messages[len(answers) :]
            if rest:
                print_note(f"error: the {len(rest)} behind it were not tried; submitting the whole again is safe")
            return answers + [Answer(m.line, None, "not tried", answer.message) for m in rest]
    return answers


async def _one(desk: SubmissionDesk, message: Message, submitter: str) -> Answer:
    try:
        submission = desk.parse(message.text)
        if "submitter" not in submission.model_fields_set:
            submission = submission.model_copy(update={"submitter": submitter})
        return _answer(message.line, await desk.submit(submission))
    except InvalidSubmission as error:
        return Answer(message.line, None, "invalid", str(error), tuple(error.problems))
    except UsageError as error:
        return Answer(message.line, None, "refused", str(error))
    except Unreachable as error:
        return Answer(message.line, None, "unreachable", str(error))
    except Exception as error:  # a bug, which must not take the answers to the others with it
        traceback.print_exception(error)
        return Answer(message.line, None, "failed", f"it is not known whether it was taken: {error!r}")


def _answer(line: int, verdict: Verdict) -> Answer:
    match verdict:
        case Accepted(task_id, _, new):
            return Answer(line, task_id, "accepted" if new else "already accepted")
        case Conflict(task_id, reason):
            text = f"conflict: {reason}; it is kept as a dead letter, and nothing was overwritten"
            return Answer(line, task_id, "conflict", text)
        case Refused(task_id, reason, retry_after):
            seconds = retry_after.total_seconds()
            text = f"refused: {reason}; nothing was written, try again in {seconds:.0f} s"
            return Answer(line, task_id, "refused", text, retry_after_s=seconds)


def _place(found: Settings, task: Task, runs: Mapping[str, str | None]) -> Json:
    if not task.epoch:
        return {"state": task.state}
    attempt = attempt_id(task.definition, task.task_id, task.epoch)
    link = ui_link(found.ui_url, namespace(), attempt, task.run_id or runs.get(attempt))
    return {"state": task.state, "attempt": attempt, "link": link}


async def _say_unclaimed(stores: Stores, tasks: Sequence[Task]) -> None:
    dead = await _warn_of_no_worker(stores, tasks)
    for task in tasks:
        if task.definition not in dead:
            print_note(f"{task.task_id}: not claimed yet; live workers have its definition, and are busy")


async def _warn_of_no_worker(stores: Stores, tasks: Sequence[Task]) -> set[str]:
    """Say which definitions no live worker has; returns them."""
    names = sorted({t.definition for t in tasks if not t.state.is_settled})
    dead = {n for n in names if not await stores.intake.live_worker_for(n, 3 * ALIVE)}
    for name in sorted(dead):
        count = sum(t.definition == name for t in tasks)
        print_note(
            f"no live worker has the definition {name!r}: {count} submitted, kept until one runs (`python worker.py`)"
        )
    return dead


def _print(answers: list[Answer]) -> None:
    for answer in answers:
        if answer.taken:
            print_line(
                f"{answer.task_id}  {answer.verdict}  {answer.state or ''}  {answer.attempt or 'not claimed yet'}"
            )
            if answer.link:
                print_line(f"    {plain(answer.link)}")


def _submitter(given: str) -> str:
    name = clean(given or user()).strip()
    if not 1 <= len(name) <= 128:
        raise UsageError(f"--submitter: 1 to 128 characters, not {given!r}")
    return name
