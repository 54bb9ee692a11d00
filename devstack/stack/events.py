"""What an embedded stack tells while it starts and runs, for a screen or a log."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Starting:
    """A part is being started."""

    part: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A part can be used. `detail`: where, or what it is; `seconds`: how long that took."""

    part: str
    detail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Died:
    """A process ended that should not have. `how`: its exit code or signal, if known."""

    part: str
    how: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """A dead process was started again, or could not be (`error`). `deaths` in a row, `pause` in seconds."""

    part: str
    pid: int | None
    deaths: int
    pause: float
    error: str | None
    last_words: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """Everything is being stopped."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Everything has stopped."""

    seconds: float


StackEvent = Starting | Ready | Died | Restarted | Stopping | Stopped
