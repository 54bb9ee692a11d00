"""The operating system's user that runs PostgreSQL: ourselves, or `nobody` when we are root.

PostgreSQL refuses to run as root. What the other user may read or enter is found out by trying it as that
user, because mode bits alone do not tell (access lists, mount options, containers).
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """Arguments for `subprocess.Popen`; every field None means: as we are."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None

    def own(self, path: Path) -> None:
        """Makes this user the owner of a file or folder that we created ourselves."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can reach and enter `folder`."""
        return self._succeeds('cd "$1"', folder)

    def can_read(self, file: Path) -> bool:
        """Whether this user can reach and read `file`."""
        return self._succeeds('test -r "$1"', file)

    def can_run(self, executable: Path) -> bool:
        """Whether this user can run `executable` with its libraries, shown by asking for its version."""
        return self._succeeds('"$1" --version', executable)

    def _succeeds(self, script: str, path: Path) -> bool:
        if self.uid is None:
            return True
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", str(path)],
            user=self.uid,
            group=self.gid,
            extra_groups=self.groups,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        return done.returncode == 0


def server_account(cluster: Path) -> Account:
    """Returns the user that runs the server: ourselves; for root the folder's owner, or `nobody` at first."""
    if os.geteuid() != 0:
        return Account()
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, ())
    nobody = pwd.getpwnam("nobody")
    return Account(nobody.pw_uid, nobody.pw_gid, ())
