"""What an Agent is: one class a remote service, one method a call.

An Agent's author writes methods marked `@action`, each of which sends one request and returns the answer. The loop that
calls them is in `activities.call_loop`: allowance, pauses, draining, and what becomes of faults.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel

from activities.authentication import Authentication
from activities.call import Call
from activities.http import error_in
from activities.meanings import Meanings
from domain.faults import DefinitionError
from domain.messages import Json

Method = TypeVar("Method", bound=Callable[..., Awaitable[Any]])


def action(method: Method) -> Method:
    """Mark a method of an Agent as something that a step can ask for: it takes a Call, and a pydantic model or nothing.

    One that undoes may also take what the step returned, as `Model | None`: None where nobody was told, and where the
    service, if it can be asked by key, has not seen it.

    It sends exactly one request.
    """
    method.is_action = True  # type: ignore[attr-defined]  # a mark that `actions` looks for
    return method


@dataclass(frozen=True)
class Action:
    """An Agent's method, as a definition sees it: `service.method`, and the models it takes and gives, if any.

    `original`: it undoes, and takes what the step returned, which is of this model.
    """

    name: str
    service: str
    method: str
    request: type[BaseModel] | None
    result: type[BaseModel] | None
    original: type[BaseModel] | None
    keeps_tombstones: bool
    can_ask: bool


@dataclass(frozen=True)
class Found:
    """What a service says of a key that it was asked about: whether it stands, and the answer it gave then."""

    state: Literal["done", "refused", "undone"]
    status: int
    body: Json


class AnswersLater(Exception):
    """The service took the work and will answer by callback."""


class Agent:
    """Wraps one remote service.

    Attributes:
        service: Name of the service: selects its address and credentials in the settings.
        over_http: Whether it is called over HTTP, at an address; others use `call.once` and `call.service.credentials`.
        authentication: How its requests are authenticated. needs: Names of further credentials.
        headers: Sent with every request.
        key_header, fence_header, time_left_header: Headers of the idempotency key, the fencing token, and the
            milliseconds left; empty where the service takes none.
        means: What its answers mean, where that is not the common meaning.
        call_within: Longest that one call may take. most_connections: At once, from one process.
        remembers: How long the service remembers a key. After that nothing is sent again that may have been done.
        undoes_within: How long after the first call of a step the service still undoes it by its keys. After that no
            undo is sent: the service might have forgotten what there is to undo, and call that a success.
        keeps_tombstones: Whether an undo keeps a late original out. If not, steps must declare a quarantine.
    """

    service: ClassVar[str]
    over_http: ClassVar[bool] = True
    authentication: ClassVar[Authentication | None] = None
    needs: ClassVar[tuple[str, ...]] = ()
    headers: ClassVar[Mapping[str, str]] = {}
    key_header: ClassVar[str] = "Idempotency-Key"
    fence_header: ClassVar[str] = "X-Fencing-Token"
    time_left_header: ClassVar[str] = "X-Time-Left-Ms"
    means: ClassVar[Meanings] = {}
    call_within: ClassVar[timedelta] = timedelta(hours=1)
    most_connections: ClassVar[int] = 100
    remembers: ClassVar[timedelta] = timedelta(hours=24)
    undoes_within: ClassVar[timedelta] = timedelta(days=30)
    keeps_tombstones: ClassVar[bool] = True

    async def find(self, call: Call, key: str) -> Found | None:
        """Ask the service what became of a key of this step; None if it has never seen it.

        An Agent whose service can't be asked does not override this, and sends again with the same key.
        """
        raise NotImplementedError

    def error_in(self, body: Json) -> tuple[str, str]:
        """Code and message of an error answer; whatever it raises for a body of another shape, KeyError or TypeError,
        leaves the status to speak."""
        return error_in(body)

    async def close(self) -> None:
        """Close what the Agent opened by itself; once, at the end of its process."""

    @classmethod
    def needed(cls) -> tuple[str, ...]:
        """Names of the credentials without which it can't be called."""
        return cls.needs + (cls.authentication.needs if cls.authentication else ())

    @classmethod
    def can_ask(cls) -> bool:
        """Whether the service can be asked by key."""
        return cls.find is not Agent.find

    @classmethod
    def actions(cls) -> list[Action]:
        """The actions of this Agent, by the marks and the type hints of its methods."""
        marked = [(n, m) for n, m in inspect.getmembers(cls, inspect.isfunction) if hasattr(m, "is_action")]
        return [_action(cls, name, method) for name, method in marked]


def _action(agent: type[Agent], name: str, method: Callable[..., Any]) -> Action:
    hints = get_type_hints(method)
    result = hints.pop("return", None)
    call, *taken = hints.values() or [None]
    request = taken.pop(0) if taken and _is_model(taken[0]) else None
    original = _model_in(taken.pop(0)) if taken and _model_in(taken[0]) else None
    if call is not Call or taken:
        takes = "one Call, one pydantic model or none, and for an undo what the step returned, as Model | None"
        raise DefinitionError(f"{agent.__name__}.{name} must take {takes}")
    return Action(
        name=f"{agent.service}.{name}",
        service=agent.service,
        method=name,
        request=request,
        original=original,
        result=result if _is_model(result) else None,
        keeps_tombstones=agent.keeps_tombstones,
        can_ask=agent.can_ask(),
    )


def _model_in(hint: Any) -> type[BaseModel] | None:
    """The model in `Model | None`."""
    args = get_args(hint)
    return args[0] if len(args) == 2 and args[1] is type(None) and _is_model(args[0]) else None


def _is_model(hint: Any) -> bool:
    return inspect.isclass(hint) and issubclass(hint, BaseModel)
