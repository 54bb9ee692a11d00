"""One embedded stack a state folder: a lock that ends with its process, however that dies."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import TextIO

from domain.faults import Conflict


class StackLock:
    """The right to run the stack of one state folder. The lock file says who has it; it stays when they are gone."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._file: TextIO | None = None

    @property
    def is_held(self) -> bool:
        """Whether we have it."""
        return self._file is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            Conflict: Another process has it; names its pid and its address.
        """
        file = (self._state_dir / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            said = file.read()
            file.close()
            raise Conflict(_refusal(self._state_dir, said)) from None
        self._file = file
        self.tell(None)

    def tell(self, ui_url: str | None) -> None:
        """Write down who runs the stack, and where its Temporal UI is, for whoever is refused."""
        if self._file is not None:
            # In place: a new file would be another lock.
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps({"pid": os.getpid(), "ui_url": ui_url}))
            self._file.flush()

    def release(self) -> None:
        """Give the lock back; does nothing if it was not taken."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def _refusal(state_dir: Path, said: str) -> str:
    try:
        owner = json.loads(said)
        pid, ui_url = int(owner["pid"]), owner["ui_url"]
    except (ValueError, KeyError, TypeError):  # it is just writing
        return f"the stack in {state_dir} is being started by another process"
    where = f"its Temporal UI is {ui_url}" if ui_url else "it is still starting"
    return (
        f"the stack in {state_dir} is already up: process {pid}; {where}."
        f" Stop that one first (kill {pid}), or choose another folder with --state-dir"
    )
