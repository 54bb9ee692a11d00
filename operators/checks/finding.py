"""What a check finds: of what, where, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from domain.redaction import redact

PATIENCE_S = 3
UP = "start the embedded stack with `python starter.py up`"


@dataclass(frozen=True)
class Check:
    """One finding. `todo` is empty where all is well. `elsewhere`: not given here, only other processes need it."""

    what: str
    where: str
    found: str
    todo: str = ""
    elsewhere: bool = False

    def __post_init__(self) -> None:
        for name in ("where", "found", "todo"):
            object.__setattr__(self, name, redact(getattr(self, name)))

    @property
    def is_well(self) -> bool:
        """Whether nothing is to be done."""
        return not self.todo


def not_given(what: str, setting: str, roles: str) -> Check:
    """A part that only workers with other roles need, and that this environment does not name."""
    return Check(what, setting, f"not given here, needed by workers with the role {roles}", elsewhere=True)
