"""The one tree of errors.

Fault
├── TransientFault        again with the same key: certainly not done
│   ├── NotSent           as well, and nothing reached the service
│   ├── NoAccess          as well: the service refuses our credential, which is not the task's fault
│   │   └── NoCredential  as well: this worker has none
│   └── UnknownOutcome    as well, but perhaps done: asked by key first, where the service can be asked
│       └── StillAtWork   as well, but the service is at it just now
├── PermanentFault        never
│   └── AnswerTooLong     done, but the answer can't be kept: a person looks, or it is undone
├── OvertakenFault        a newer attempt was seen: stop quietly
└── OutOfTime             the time is up, nothing was sent
UsageError                what was asked for is wrong: names the thing and the value
├── DefinitionError
├── NotFound
└── Conflict
Unreachable               a dependency can't be reached: names it, and what to do

What any of them says is shown and kept in many places, so it is redacted as it is said.
"""

from __future__ import annotations

from datetime import timedelta

from domain.redaction import redact

KEY_FORGOTTEN = "key_forgotten"
"""It may be done, and the service may know its key no more: sent now, a call could do it twice, or undo nothing."""


class _Said(Exception):
    """An error of our own, without anything secret in its words."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class Fault(_Said):
    """A call to a remote service that did not succeed."""


class TransientFault(Fault):
    """Trying again may help; the service certainly did nothing, unless it is an `UnknownOutcome`.

    `retry_after` is the service's own wish.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotSent(TransientFault):
    """Certainly nothing reached the service: it costs the task none of its calls."""


class NoAccess(TransientFault):
    """The service refuses our credential, so it did nothing: it costs the task none of its calls."""


class NoCredential(NoAccess):
    """This worker lacks a credential, or can't read it; nothing was sent."""


class UnknownOutcome(TransientFault):
    """The service may have done it. Trying again is safe because of the key."""


class StillAtWork(UnknownOutcome):
    """The service is still at work on an earlier call with the same key: the calls that are left are spread over the
    time that is left, as the answer comes by then or not at all."""


class PermanentFault(Fault):
    """Trying again never helps. `code` is the service's own word for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class AnswerTooLong(PermanentFault):
    """It was done, but the answer is longer than what can be kept; asking again would not make it shorter."""

    def __init__(self, message: str) -> None:
        super().__init__("answer_too_long", message)


class OvertakenFault(Fault):
    """The service has seen a newer fencing token: this attempt no longer counts."""


class OutOfTime(Fault):
    """Too little time is left for a call; none was sent."""


class UsageError(_Said):
    """What was asked for can't be done as asked; the message names the thing, the value and the next step."""


DEFINITION_ERROR = "definition_error"
"""Code of the permanent fault that a task has whose definition fails while it is interpreted."""


class DefinitionError(UsageError):
    """A task definition that must not be run."""


class NotFound(UsageError):
    """There is no such thing."""


class Conflict(UsageError):
    """The state of the thing does not allow it."""


class Unreachable(_Said):
    """A dependency can't be reached or is not ready; the message says which, where, and what to do."""
