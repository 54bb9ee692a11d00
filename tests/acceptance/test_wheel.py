"""The wheel in an environment of its own: what it holds, under which names, and that it is the same two programs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from testing import ROOT
from tests.installed import Environment, installed_environment, pip
from tests.unit.test_repository import PACKAGES

MODULES = ("starter", "worker")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel in it."""
    return installed_environment(tmp_path_factory.mktemp("wheel"))


def test_wheel_puts_one_name_beside_other_packages(environment: Environment) -> None:
    found = {path.name for path in environment.site.iterdir() if path.name != "dependencies.pth"}
    assert {n.partition("-")[0] for n in found} == {"sas", "scheduler_agent_supervisor"}


def test_wheel_holds_every_file_of_the_packages_and_the_examples(environment: Environment) -> None:
    wanted = {
        str(path.relative_to(ROOT))
        for folder in (*PACKAGES, "examples")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    sas = environment.site / "sas"
    found = {
        str(path.relative_to(sas)) for path in sas.rglob("*") if "__pycache__" not in path.parts and path.is_file()
    }
    assert found == wanted | {"__init__.py", "starter.py", "worker.py"}


def test_wheel_imports_nothing_of_ours_by_a_bare_name(environment: Environment) -> None:
    found = []
    for path in (environment.site / "sas").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
            found += [f"{path.name}: {n}" for n in names if n.partition(".")[0] in {*PACKAGES, *MODULES}]
    assert found == []


def test_declared_dependencies_are_all_there(environment: Environment) -> None:
    pip("check", python=environment.python)


def test_installed_commands_are_those_of_the_checkout(environment: Environment, tmp_path: Path) -> None:
    for command, script in (("sas", "starter.py"), ("sas-worker", "worker.py")):
        ours = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        theirs = environment.run(command, "--help", cwd=tmp_path)
        assert theirs.stdout.split() == ours.stdout.replace(script, command).split()


def test_installed_commands_speak_of_themselves(environment: Environment, tmp_path: Path) -> None:
    done = environment.run("sas", "doctor", cwd=tmp_path, check=False)
    assert "start the embedded stack with `sas up`" in done.stdout
    done = environment.run("sas-worker", cwd=tmp_path, check=False)
    assert (done.returncode, "no definition is found" in done.stderr) == (2, True)


def test_checkout_is_not_installed_as_editable(environment: Environment) -> None:
    with pytest.raises(AssertionError, match="a checkout is not installed"):
        pip("install", "--no-deps", "--editable", str(ROOT), python=environment.python)
