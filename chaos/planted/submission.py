"""Mistakes in taking a task: its two writes, its confirmation, its caps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from chaos.planted.bug import CHAOS, Bug
from chaos.planted.patches import Behaviour
from definitions import registry
from domain.definition import Definition
from domain.messages import Json
from store.admission import Admission, AdmissionCaps, CapReached, NewTask
from store.orders import Amendment, Orders
from store.submission import SUBMISSION, Accepted, Submission, SubmissionDesk, digest_of

_BOUNDLESS = AdmissionCaps(in_flight=1 << 30, pending=1 << 30, pending_age=timedelta(days=365))


def creating_behind_the_acknowledgement(real: Any) -> Any:
    async def create(self: Any, task_id: str, definition: str, record: Json, digest: str) -> bool:
        _behind(partial(real, self, task_id, definition, record, digest))
        return True

    return create


def confirming_behind_the_acknowledgement(real: Any) -> Any:
    async def confirm(self: Any, task_id: str, digest: str, *, actor: str) -> bool:
        if actor != SUBMISSION:
            return bool(await real(self, task_id, digest, actor=actor))
        _behind(partial(real, self, task_id, digest, actor=actor))
        return True

    return confirm


def _behind(write: Callable[[], Awaitable[Any]]) -> None:
    """Let it be written in a second, by a process that may not live so long."""

    async def later() -> None:
        await asyncio.sleep(1)
        await write()

    _written.add(asyncio.create_task(later()))


_written: set[asyncio.Task[Any]] = set()
"""Nobody else keeps them."""


def taking_the_same_content_for_the_same_task(real: Any) -> Any:
    async def submit(self: Any, submission: Submission) -> Any:
        definition, record = _read(submission)
        query = "SELECT task_id FROM business_record WHERE digest = %(digest)s"
        found = await self._orders.database.rows(query, {"digest": digest_of(definition.name, record)})
        if any(r["task_id"] != submission.task_id for r in found):
            return Accepted(submission.task_id, definition.name, new=False)
        return await real(self, submission)

    return submit


def _read(submission: Submission) -> tuple[Definition, Json]:
    definition = registry().newest(submission.definition)
    assert definition is not None
    return definition, definition.record.model_validate(submission.record).model_dump(mode="json")


def letting_the_last_writer_win(real: Any) -> Any:
    async def _dead_letter(self: Any, submission: Submission, reason: str) -> Any:
        definition, record = _read(submission)
        found = (await self._orders.load([submission.task_id]))[submission.task_id]
        await self._orders.amend(Amendment(submission.task_id, record, found.amendments))
        await self._orders.database.rows(
            "UPDATE business_record SET digest = %(digest)s WHERE task_id = %(task_id)s RETURNING task_id",
            {"task_id": submission.task_id, "digest": digest_of(definition.name, record)},
        )
        return Accepted(submission.task_id, definition.name, new=False)

    return _dead_letter


def counting_before_the_insert(real: Any) -> Any:
    async def admit(self: Any, new: NewTask) -> Any:
        load = (await self._database.rows(_LOAD, {"definition": new.definition.name}))[0]
        if load["in_flight"] >= self._caps.in_flight or load["pending"] >= self._caps.pending:
            return CapReached(new.task_id, "a cap is reached", timedelta(seconds=2))
        await asyncio.sleep(0.3)  # the insert is sent over a line that is not always quick
        return await real(Admission(self._database, _BOUNDLESS), new)

    return admit


_LOAD = """
SELECT count(*) AS in_flight, count(*) FILTER (WHERE state = 'Pending') AS pending
FROM task WHERE definition = %(definition)s AND state IN ('Pending', 'Processing')
"""


SUBMISSION_BUGS = (
    Bug(
        "ack_before_commit",
        "the submission is acknowledged, and its business record written and confirmed behind that",
        (
            Behaviour(Orders, "create", creating_behind_the_acknowledgement),
            Behaviour(Admission, "confirm", confirming_behind_the_acknowledgement),
        ),
        ("submitter: before:admit",),
        ("acknowledged_task_is_there", "acknowledged_task_is_whole"),
    ),
    Bug(
        "dedupe_by_body",
        "a submission with a content that was seen before is taken for a repetition",
        (Behaviour(SubmissionDesk, "submit", taking_the_same_content_for_the_same_task),),
        ("submitter: before:admit", "submitter: before:create_record"),
        ("acknowledged_task_is_there",),
    ),
    Bug(
        "last_writer_wins",
        "a submission that contradicts the record overwrites it",
        (Behaviour(SubmissionDesk, "_dead_letter", letting_the_last_writer_win),),
        ("order contradicted afterwards",),
        ("begun_task_has_its_business_record",),
    ),
    Bug(
        "cap_outside_the_transaction",
        "the caps are looked at first, and the task is inserted afterwards",
        (Behaviour(Admission, "admit", counting_before_the_insert),),
        CHAOS,
        ("admission_caps_held",),
        by_submitter=True,
    ),
)
