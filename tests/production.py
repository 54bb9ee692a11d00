"""The packages that production has: those of `requirements-prod.lock`, and none of what the tests have besides."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==\S+(?: ; (.*?))? \\$", re.MULTILINE)


def production_python(folder: Path) -> tuple[list[str], dict[str, str]]:
    """An interpreter that finds these packages and no others: how it is called, and the variables it needs."""
    packages = folder / "packages"
    packages.mkdir()
    for name, marker in LOCKED.findall((ROOT / "requirements-prod.lock").read_text()):
        try:
            found = distribution(name)
        except PackageNotFoundError:
            assert marker, f"{name} is in the lock and not installed"
            continue
        for entry in {file.parts[0] for file in found.files or () if not str(file).startswith(("..", "__pycache__"))}:
            link = packages / entry
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(entry))))
    return [sys.executable, "-S"], {"PYTHONPATH": str(packages)}
