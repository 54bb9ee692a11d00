"""Files that hold what customers entrust to us: databases, ledgers, logs. Nobody else on the machine may read them."""

from __future__ import annotations

from pathlib import Path

ONLY_OURS = 0o077
"""The umask of every child."""


def make_private(folder: Path) -> None:
    """Make a folder that only we can enter; one that is there is closed, and so are the files in it.

    What an earlier version left open may be open in a program of somebody else's: so the files, too.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for file in folder.iterdir():
        if file.is_file() and not file.is_symlink():
            file.chmod(0o600)
