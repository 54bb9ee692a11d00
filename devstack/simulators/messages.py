"""What travels between the HTTP part and the ledger: calls, answers and the operations a service offers."""

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

Body = TypeVar("Body", bound=BaseModel)
Json = dict[str, Any]

_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "simulators.scheduler-agent-supervisor")


@dataclass(frozen=True)
class Call:
    """One received request that asks for an effect or for its undo.

    `key` is the Idempotency-Key, `token` the fencing token. Both are None where the caller left them out;
    such a call is recorded and refused.
    """

    path: str
    undo: bool
    key: str | None
    token: int | None
    time_left_ms: int | None

    @property
    def task_id(self) -> str | None:
        """The task that the key belongs to: what stands before the first colon."""
        return self.key.partition(":")[0] if self.key else None


@dataclass(frozen=True)
class Answer:
    """A status and a JSON body; `outcome` is the word under which the call stands in the ledger."""

    status: int
    body: Json
    outcome: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Create(Generic[Body]):
    """An operation with an effect. `execute` is pure: the answer depends on the body and the key only."""

    path: str
    body: type[Body]
    execute: Callable[[Body, str], Answer]


@dataclass(frozen=True)
class Undo:
    """The operation that takes effects of `creates` back."""

    path: str
    creates: str


Operation = Create[Any] | Undo


@dataclass(frozen=True)
class Service:
    """One simulated service. `name` is its path prefix; paths of operations are written in full."""

    name: str
    operations: tuple[Operation, ...]


def success(status: int, body: Json) -> Answer:
    """Returns the answer to a request that was carried out."""
    return Answer(status, body, "executed")


def refusal(status: int, code: str, message: str) -> Answer:
    """Returns an error answer in the format that all services share."""
    return Answer(status, {"error": {"code": code, "message": message}}, code)


def stable_uuid(kind: str, key: str) -> uuid.UUID:
    """Returns the same UUID for the same kind and key, on every machine."""
    return uuid.uuid5(_NAMESPACE, f"{kind}/{key}")


def stable_id(kind: str, key: str) -> str:
    """Returns the id of the object that `key` creates, for example `charge_5f0c…`."""
    return f"{kind}_{stable_uuid(kind, key).hex[:20]}"


def canonical(document: object) -> str:
    """Returns the one JSON text of a document, whatever order its fields came in."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def fingerprint(document: object) -> str:
    """Returns the SHA-256 of the canonical JSON text, in hexadecimal."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()
