"""The wheel, built and installed into an environment that holds nothing else of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from testing import ROOT


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        """Where packages are installed."""
        return next(self.folder.glob("lib/python*/site-packages"))

    def install(self, project: Path) -> None:
        """Build the wheel of the project in this folder and install it, without the packages that it depends on."""
        wheel = built_wheel(project, self.folder / "wheels" / project.name)
        pip("install", "--no-index", "--no-deps", str(wheel), python=self.python)

    def variables(self, **more: str) -> dict[str, str]:
        """What its programs find around them: nothing of this checkout, and the servers' programs."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("SAS_", "TEMPORAL_", "PYTHON"))}
        path = os.pathsep.join([str(self.folder / "bin"), sysconfig.get_path("scripts"), kept["PATH"]])
        return {**kept, "PATH": path, **more}

    def run(self, *command: str, cwd: Path, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to the end."""
        done = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            env=self.variables(**more),
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done


def pip(*arguments: str, python: str = sys.executable) -> None:
    """Run this environment's pip upon that interpreter; what it says is shown where it fails."""
    command = [sys.executable, "-m", "pip", "--python", python, *arguments, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def built_wheel(project: Path, folder: Path) -> Path:
    """The wheel of a project. Where the package that builds it is not installed, an index must have it."""
    isolation = ["--no-index", "--no-build-isolation"] if find_spec("hatchling") else []
    try:
        pip("wheel", "--no-deps", "--wheel-dir", str(folder), *isolation, str(project))
    except AssertionError as error:
        if isolation:
            raise
        pytest.skip(f"hatchling is not installed here (make setup), and no index gave it: {error}")
    return next(folder.glob("*.whl"))


def installed_environment(folder: Path) -> Environment:
    """A new environment with the wheel of this checkout. The packages that it needs are found where we have them."""
    environment = Environment(folder)
    venv.create(folder, symlinks=True)
    (environment.site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    environment.install(ROOT)
    return environment
