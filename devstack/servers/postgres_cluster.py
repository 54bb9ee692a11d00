"""The files of an embedded PostgreSQL: where they lie, whose they are, and how they are first made."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from devstack.processes.accounts import Account, server_account
from devstack.processes.records import EmbeddedServerError, write_atomically
from devstack.servers.postgres_binaries import programs_for
from runtime.shell import plain_environment

SUPERUSER = "postgres"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A database cluster that is ready to be served.

    Attributes:
        folder: 0700, owned by the server's user; holds the data.
        account: the server's user.
        programs: the folder of `initdb` and `postgres`.
    """

    folder: Path
    account: Account
    programs: Path

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"


def locate(home: Path, *, durable: bool) -> Path:
    """Returns the folder for data below `home`, or the one outside that is recorded there.

    The server's user may be unable to enter `home`. No parent folder's rights are ever changed for that: the
    data goes to a folder of its own elsewhere, whose path is kept in `home/location`.

    Raises:
        EmbeddedServerError: the recorded folder is gone.
    """
    location = home / "location"
    if location.exists():
        folder = Path(location.read_text(encoding="utf-8").strip())
        if not folder.is_dir():
            raise EmbeddedServerError(f"the data folder {folder} is gone; delete {location} to begin with an empty one")
        return folder
    inside = home / "cluster"
    if inside.exists() or server_account(inside).can_enter(home):
        return inside
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:12]
    folder = _new_folder_outside(f"sas-postgres-{digest}-", durable=durable)
    write_atomically(location, f"{folder}\n", mode=0o644)
    return folder


def prepare(home: Path, *, durable: bool) -> Cluster:
    """Returns the cluster of `home`, created on the first call. The caller holds the lock."""
    folder = locate(home, durable=durable)
    account = server_account(folder)
    if not folder.exists() or os.geteuid() == 0:
        folder.mkdir(mode=0o700, exist_ok=True)
        account.own(folder)
    cluster = Cluster(folder, account, programs_for(account))
    if not cluster.data.exists():
        _initialise(cluster, _create_password(home), durable=durable)
    return cluster


def read_password(home: Path) -> str:
    """Returns the superuser's password. Raises `EmbeddedServerError` if there is none yet."""
    try:
        return (home / "password").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise EmbeddedServerError(f"{home} holds no password: the server was never started there") from None


def _new_folder_outside(prefix: str, *, durable: bool) -> Path:
    # /var/tmp is cleaned after some weeks on many systems; data that must last belongs below /var/lib.
    temporary = "/var/tmp"  # noqa: S108 - mkdtemp makes a new folder that is ours alone
    for base in ("/var/lib", temporary) if durable else (temporary,):
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        except OSError:
            continue
    raise EmbeddedServerError("no folder for PostgreSQL's data could be made in /var/lib or /var/tmp")


def _create_password(home: Path) -> str:
    password = secrets.token_urlsafe(24)
    write_atomically(home / "password", password)
    return password


def _initialise(cluster: Cluster, password: str, *, durable: bool) -> None:
    """Runs `initdb` into a draft and renames it, so that a half-made cluster is never served."""
    draft, password_file = cluster.folder / "data.new", cluster.folder / "password.new"
    shutil.rmtree(draft, ignore_errors=True)
    write_atomically(password_file, password)
    cluster.account.own(password_file)
    try:
        done = subprocess.run(
            _initdb(cluster, draft, password_file, durable=durable),
            user=cluster.account.uid,
            group=cluster.account.gid,
            extra_groups=cluster.account.groups,
            cwd="/",
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        password_file.unlink(missing_ok=True)
    if done.returncode != 0:
        raise EmbeddedServerError(f"initdb failed for {cluster.data}:\n{done.stdout}{done.stderr}")
    draft.rename(cluster.data)


def _initdb(cluster: Cluster, draft: Path, password_file: Path, *, durable: bool) -> list[str]:
    return [
        str(cluster.programs / "initdb"),
        f"--pgdata={draft}",
        f"--username={SUPERUSER}",
        "--auth=scram-sha-256",
        f"--pwfile={password_file}",
        "--encoding=UTF8",
        # PostgreSQL's own C.UTF-8: the same on every system, whatever locales that has.
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--locale=C",
        "--no-instructions",
        *([] if durable else ["--no-sync"]),
    ]
