"""Which definitions and Agents a process finds: those of installed packages, of named ones, and the samples on request.

Each program here runs in a process of its own, as a worker would: what is found is kept for the life of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing import ROOT

AGENT = """
from pydantic import BaseModel
from activities.agent import Agent, Call, action

class Grant(BaseModel):
    points: int

class Loyalty(Agent):
    service = "loyalty"

    @action
    async def grant(self, call: Call, request: Grant) -> None:
        await call.post("/grants", request)
"""
DEFINITION = """
from datetime import timedelta
from domain.definition import Definition, Step
from {package}.agents import Grant

def grant(record, results) -> Grant:
    return Grant(points=1)

STEP = Step(name="points", action="{action}", request=grant, no_effect=True, within=timedelta(seconds=1))
WELCOME = Definition(name="welcome", version=1, record=Grant, steps=(STEP,))
"""
FOUND = "print(definitions.registry().names(), [a.service for a in activities.agents.all_agents()])"


def make_package(folder: Path, name: str, *, agent: str = AGENT, action: str = "loyalty.grant") -> str:
    """A package with an Agent and a definition, as one's own would be."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "agents.py").write_text(agent)
    (folder / name / "definitions.py").write_text(DEFINITION.format(package=name, action=action))
    return name


def install(folder: Path, name: str) -> None:
    """What an installer leaves beside a package: its entry points."""
    (info := folder / f"{name}-1.0.dist-info").mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    points = f"[sas.definitions]\nall = {name}.definitions\n[sas.agents]\nall = {name}.agents\n"
    (info / "entry_points.txt").write_text(points)


def loaded(folder: Path, **variables: str) -> str:
    """What a process prints that loads everything, or the last line of what it raises."""
    ours = {n: v for n, v in os.environ.items() if not n.startswith("SAS_")}
    done = subprocess.run(
        [sys.executable, "-c", f"import activities.agents, definitions; {FOUND}"],
        env={**ours, "PYTHONPATH": str(folder), **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout or done.stderr).strip().splitlines()[-1]


def test_installed_package_is_found_alone(tmp_path: Path) -> None:
    install(tmp_path, make_package(tmp_path, "welcome"))
    assert loaded(tmp_path) == "['welcome'] ['loyalty']"


def test_package_named_by_settings_is_found_alone(tmp_path: Path) -> None:
    name = make_package(tmp_path, "welcome")
    assert loaded(tmp_path, SAS_DEFINITIONS=name, SAS_AGENTS=f"{name}.agents") == "['welcome'] ['loyalty']"


def test_package_that_is_installed_and_named_is_found_once(tmp_path: Path) -> None:
    install(tmp_path, name := make_package(tmp_path, "welcome"))
    assert loaded(tmp_path, SAS_DEFINITIONS=name, SAS_AGENTS=name) == "['welcome'] ['loyalty']"


def test_samples_are_found_on_request(tmp_path: Path) -> None:
    install(tmp_path, make_package(tmp_path, "welcome"))
    assert loaded(tmp_path, SAS_SAMPLES="1").startswith("['order', 'provisioning', 'welcome'] ['cloud', 'loyalty', ")
    assert loaded(tmp_path, SAS_SAMPLES="only").startswith("['order', 'provisioning'] ['cloud', 'mail', ")
    assert "SAS_SAMPLES: must be 1, 0 or only, not 'perhaps'" in loaded(tmp_path, SAS_SAMPLES="perhaps")


def test_nothing_found_says_where_to_put_it(tmp_path: Path) -> None:
    said = loaded(tmp_path)
    assert "no definition is found: install a package with an entry point in the group sas.definitions" in said
    assert "SAS_SAMPLES=1 for the samples" in said


def test_definition_in_two_packages_names_both(tmp_path: Path) -> None:
    make_package(tmp_path, "one")
    make_package(tmp_path, "two")
    said = loaded(tmp_path, SAS_DEFINITIONS="one,two", SAS_AGENTS="one")
    assert "definition welcome v1 is in one.definitions and in two.definitions" in said


def test_two_agents_of_one_service_are_refused(tmp_path: Path) -> None:
    make_package(tmp_path, "one")
    make_package(tmp_path, "two")
    said = loaded(tmp_path, SAS_DEFINITIONS="one", SAS_AGENTS="one,two")
    assert "the Agent of service loyalty is in one.agents and in two.agents" in said


def test_action_of_no_agent_is_named_with_those_there_are(tmp_path: Path) -> None:
    make_package(tmp_path, "welcome", action="loyalty.give")
    said = loaded(tmp_path, SAS_DEFINITIONS="welcome", SAS_AGENTS="welcome")
    assert "welcome v1, step points: no Agent has an action 'loyalty.give' (there are: loyalty.grant)" in said
    assert "(there are: none)" in loaded(tmp_path, SAS_DEFINITIONS="welcome")


@pytest.mark.parametrize(("agent", "reason"), [("1 / 0", "division by zero"), ("import nowhere", "'nowhere'")])
def test_broken_package_is_named_with_its_entry_point(tmp_path: Path, agent: str, reason: str) -> None:
    install(tmp_path, make_package(tmp_path, "welcome", agent=agent))
    said = loaded(tmp_path)
    assert "entry point 'all' of welcome in group sas.definitions can't be loaded: " in said
    assert reason in said
