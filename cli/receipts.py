"""Messages are submitted one by one, and each gets a receipt: taken, taken already, or why not."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cli.app import ExitCode
from cli.messages import Message
from cli.output import plain, print_line, print_note
from domain.faults import Unreachable, UsageError
from domain.states import TaskState
from store.admission import CapReached
from store.submission import Accepted, DeadLettered, InvalidSubmission, SubmissionDesk, SubmissionOutcome

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
class Receipt:
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


def print_receipts(receipts: Sequence[Receipt]) -> None:
    """For people, on standard output: those that were taken. Of the others `take_in` has said why not."""
    for receipt in receipts:
        if receipt.taken:
            attempt = receipt.attempt or "not claimed yet"
            print_line(f"{receipt.task_id}  {receipt.verdict}  {receipt.state or ''}  {attempt}")
            if receipt.link:
                print_line(f"    {plain(receipt.link)}")


async def take_in(desk: SubmissionDesk, messages: list[Message], submitter: str) -> list[Receipt]:
    """Submit one after the other, as they came; a bad one does not keep the others."""
    receipts: list[Receipt] = []
    for message in messages:
        receipt = await _one(desk, message, submitter)
        receipts.append(receipt)
        if not receipt.taken:
            who = f" task {receipt.task_id}:" if receipt.task_id else ""
            for text in receipt.problems or (receipt.message,):
                print_note(f"line {message.line}:{who} {text}")
        if receipt.verdict == "unreachable":
            rest = messages[len(receipts) :]
            if rest:
                print_note(f"error: the {len(rest)} behind it were not tried; submitting the whole again is safe")
            return receipts + [Receipt(m.line, None, "not tried", receipt.message) for m in rest]
    return receipts


async def _one(desk: SubmissionDesk, message: Message, submitter: str) -> Receipt:
    try:
        submission = desk.parse(message.text)
        if "submitter" not in submission.model_fields_set:
            submission = submission.model_copy(update={"submitter": submitter})
        return _receipt(message.line, await desk.submit(submission))
    except InvalidSubmission as error:
        return Receipt(message.line, None, "invalid", str(error), tuple(error.problems))
    except UsageError as error:
        return Receipt(message.line, None, "refused", str(error))
    except Unreachable as error:
        return Receipt(message.line, None, "unreachable", str(error))
    except Exception as error:  # a bug, which must not take the others with it
        traceback.print_exception(error)
        return Receipt(message.line, None, "failed", f"it is not known whether it was taken: {error!r}")


def _receipt(line: int, verdict: SubmissionOutcome) -> Receipt:
    match verdict:
        case Accepted(task_id, _, new):
            return Receipt(line, task_id, "accepted" if new else "already accepted")
        case DeadLettered(task_id, reason):
            text = f"conflict: {reason}; it is kept as a dead letter, and nothing was overwritten"
            return Receipt(line, task_id, "conflict", text)
        case CapReached(task_id, reason, retry_after):
            seconds = retry_after.total_seconds()
            text = f"refused: {reason}; nothing was written, try again in {seconds:.0f} s"
            return Receipt(line, task_id, "refused", text, retry_after_s=seconds)
