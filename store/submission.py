"""Submission: two stores, no shared transaction, every write idempotent on the task id.

The state row comes first, because admission is decided with it, but nobody can claim it; then the business record; then
the row is confirmed, which makes it claimable; only then the acknowledgement. Whoever dies in between has acknowledged
nothing: the next delivery finishes the pair, or the housekeeper confirms or removes it (`store/housekeeping.py`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from domain.definition import Definition, Registry
from domain.faults import UsageError
from domain.ids import NEW_TASK_ID
from domain.json_text import BadJson, read_json
from domain.messages import Json
from store.admission import Admission, Admitted, CapReached, NewTask, RecordDiffers
from store.orders import Orders

MOST_BYTES = 256 * 1024
_MOST_PROBLEMS, _LONGEST_PROBLEM = 20, 400

SUBMISSION = "submission"
"""Who confirms a task in its events, if it is not the housekeeper."""


class Submission(BaseModel):
    """What a submitter sends: the application's own id, the definition's name, the business record."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task_id: str = Field(pattern=rf"^{NEW_TASK_ID.pattern}$")
    definition: str
    record: Json
    submitter: str = Field("cli", min_length=1, max_length=128)
    reply_to: str | None = Field(None, max_length=256)


@dataclass(frozen=True)
class Accepted:
    """The task is confirmed. `new`: made by this call; otherwise by an earlier one with the same content."""

    task_id: str
    definition: str
    new: bool


@dataclass(frozen=True)
class DeadLettered:
    """A record of that id says something else: the message is in the dead letters, nothing was overwritten."""

    task_id: str
    reason: str


SubmissionOutcome = Accepted | DeadLettered | CapReached


class InvalidSubmission(UsageError):
    """The message is wrong. `problems`: one text a field, each with the value that was given."""

    def __init__(self, problems: list[str]) -> None:
        more = len(problems) - _MOST_PROBLEMS
        self.problems = [p[:_LONGEST_PROBLEM] for p in problems[:_MOST_PROBLEMS]]
        self.problems += [f"and {more} more"] * (more > 0)
        super().__init__("; ".join(self.problems))


class SubmissionDesk:
    """Takes submissions in."""

    def __init__(self, admission: Admission, orders: Orders, registry: Registry) -> None:
        self._admission, self._orders, self._registry = admission, orders, registry

    def parse(self, text: str | bytes) -> Submission:
        """Read one message. `submit` checks its record.

        Raises:
            InvalidSubmission: Naming each field that is wrong, and its value.
        """
        size = len(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
        if size > MOST_BYTES:
            raise InvalidSubmission([f"the message has {size} bytes; at most {MOST_BYTES} are taken"])
        try:
            return Submission.model_validate(read_json(text))
        except BadJson as error:
            raise InvalidSubmission(error.problems) from error
        except ValidationError as error:
            raise InvalidSubmission(_problems(error, ())) from error

    async def submit(self, submission: Submission) -> SubmissionOutcome:
        """Write what is missing of both records, confirm them, and acknowledge.

        Raises:
            InvalidSubmission: As `parse`, before anything was written.
            Unreachable: A store did not answer. Submitting the same again is safe, and finishes what was begun.
        """
        definition, record = await self._read(submission)
        for _ in range(4):
            digest = digest_of(definition.name, record)
            new = NewTask(submission.task_id, definition, digest, submission.submitter, submission.reply_to)
            match await self._admission.admit(new):
                case CapReached() as full:
                    return full
                case RecordDiffers(name, version):
                    older = self._registry.find(name, version)
                    if name != definition.name or version == definition.version or older is None:
                        return await self._dead_letter(
                            submission, "its content differs from the record of that task id"
                        )
                    definition, record = older, _validated(older, submission)  # a redelivery across a release
                case Admitted(is_new):
                    if not await self._orders.create(submission.task_id, definition.name, record, digest):
                        return await self._dead_letter(submission, "the orders database has another record of that id")
                    if await self._admission.confirm(submission.task_id, digest, actor=SUBMISSION):
                        return Accepted(submission.task_id, definition.name, is_new)
        raise UsageError(f"task {submission.task_id}: its submission is being removed; submit it again")

    async def _read(self, submission: Submission) -> tuple[Definition, Json]:
        """The record, by the newest version of its definition; of a redelivery also by the version on record."""
        newest = self._newest(submission)
        try:
            return newest, _validated(newest, submission)
        except InvalidSubmission:
            on_record = await self._admission.definition_of(submission.task_id)
            older = self._registry.find(*on_record) if on_record else None
            if older is None or older.name != newest.name or older is newest:
                raise
            return older, _validated(older, submission)

    def _newest(self, submission: Submission) -> Definition:
        definition = self._registry.newest(submission.definition)
        if definition is None:
            known = ", ".join(self._registry.names())
            raise InvalidSubmission([f"definition: there is no {submission.definition[:80]!r} (there are: {known})"])
        return definition

    async def _dead_letter(self, submission: Submission, reason: str) -> DeadLettered:
        message = submission.model_dump(mode="json")
        await self._admission.dead_letter(submission.task_id, submission.submitter, reason, message)
        return DeadLettered(submission.task_id, reason)


def _validated(definition: Definition, submission: Submission) -> Json:
    try:
        return definition.checked(submission.record)
    except ValidationError as error:
        raise InvalidSubmission(_problems(error, ("record",))) from error
    except Exception as error:  # whoever wrote the model may have made a mistake; this record is not taken
        raise InvalidSubmission(
            [f"record: the model of {definition.name} v{definition.version} fails: {error!r}"]
        ) from error


def digest_of(definition: str, record: Json) -> str:
    """SHA-256 of the canonical form: keys sorted, no white space, UTF-8."""
    canonical = json.dumps([definition, record], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _problems(error: ValidationError, where: tuple[str, ...]) -> list[str]:
    return [_problem(e, where) for e in error.errors(include_url=False, include_context=False)]


def _problem(error: Any, where: tuple[str, ...]) -> str:
    field = ".".join(str(part) for part in (*where, *error["loc"]))
    if error["type"] in ("missing", "json_invalid"):
        return f"{field}: {error['msg']}" if field else str(error["msg"])
    value = json.dumps(error["input"], default=str)
    shown = value if len(value) <= 80 else value[:77] + "..."
    return f"{field}: {error['msg']}, not {shown}"
