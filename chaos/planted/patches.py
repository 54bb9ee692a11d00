"""How a bug is put into a process: another text for a statement, another body for a method.

A patch that no longer fits what it patches fails, so that no bug is ever thought to be planted that is not there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from store.database import Database
from store.queries import query


class Unplantable(LookupError):
    """What is to be patched is not there, or no longer looks as it did."""


@dataclass(frozen=True)
class Statement:
    """`new` in place of `old`, wherever it is in the text of a query."""

    query: str
    old: str
    new: str

    def edited(self, text: str) -> str:
        """The text with the bug in it."""
        if self.old not in text:
            raise Unplantable(f"{self.query}.sql has no {self.old!r}")
        return text.replace(self.old, self.new)

    def check(self) -> None:
        """Fail if it does not fit."""
        self.edited(query(self.query))


@dataclass(frozen=True)
class Behaviour:
    """Another function in place of one that `owner`, a class or a module, defines; `make` gets the real one."""

    owner: Any
    name: str
    make: Callable[[Any], Any]

    def made(self) -> Any:
        """The function with the bug in it."""
        real = vars(self.owner).get(self.name)
        if not inspect.isfunction(real):
            raise Unplantable(f"{self.owner.__name__} defines no function {self.name}")
        made = self.make(real)
        wanted, taken = (list(inspect.signature(f).parameters) for f in (real, made))
        if wanted != taken:
            raise Unplantable(f"{self.owner.__name__}.{self.name} takes {wanted}, its bug {taken}")
        return made

    def check(self) -> None:
        """Fail if it does not fit."""
        self.made()


Patch = Statement | Behaviour


def put_in(patches: Iterable[Patch]) -> Callable[[], None]:
    """Put patches into this process. Calling what is returned takes them out again."""
    texts: dict[str, str] = {}
    behaviours = [Behaviour(Database, "_send", lambda real: _sends(real, texts))]
    for patch in patches:
        if isinstance(patch, Statement):
            real = query(patch.query)
            texts[real] = patch.edited(texts.get(real, real))
        else:
            behaviours.append(patch)
    before = [(b.owner, b.name, vars(b.owner)[b.name]) for b in behaviours]
    for behaviour in behaviours:
        setattr(behaviour.owner, behaviour.name, behaviour.made())

    def take_out() -> None:
        for owner, name, was in reversed(before):
            setattr(owner, name, was)

    return take_out


def _sends(real: Any, texts: Mapping[str, str]) -> Any:
    """Below the kill points, which know a statement by its text."""

    async def _send(self: Database, statements: Any, before_commit: Any) -> Any:
        return await real(self, [(texts.get(text, text), params) for text, params in statements], before_commit)

    return _send
