"""The documents are held to the code: named tests exist, lists are complete, links lead somewhere, examples load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands import COMMANDS
from runtime.settings import Settings
from tests.demands import marked_with, marks_by_test, with_counts

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GROUPS = {"A": 9, "B": 11, "C": 15, "D": 13, "E": 4, "F": 13, "G": 12, "H": 12}
"""How many demands of the pattern each group has."""

FAILURES = 123
DEMAND_ROW = re.compile(r"^\| ([A-H]\d+) \| [^|]+ \| (\d+) \|( [^|]+)? \|$", re.MULTILINE)
FAILURE_ROW = re.compile(r"^\| (\d+) \| [^|]+ \| [^|]+ \| `(test_\w+)` \|$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(test_\w+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
COMMAND = re.compile(r"(?:\bstarter\.py|(?:^|[`&]|example )sas) ([a-z][\w-]*)", re.MULTILINE)
TARGET = re.compile(r"(?:`|^)make ([a-z-]+)", re.MULTILINE)
FILE = re.compile(r"`((?:\w+/)+[\w.-]+\.(?:py|sql|sh|yml|jsonl|env))`")
PATH = re.compile(r"^\d\. `([\w/.-]+)`:", re.MULTILINE)
EXAMPLE = re.compile(
    r"^`((?:activities/agents|definitions)/\w+\.py)`:\n\n```python\n(.*?)```$", re.MULTILINE | re.DOTALL
)


def text(name: str) -> str:
    """A document of `docs/`."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    names = {test.split("::")[1] for test in marks_by_test()}
    assert sorted(set(NAMED_TEST.findall(document.read_text(encoding="utf-8"))) - names) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_file_that_a_document_names_exists(document: Path) -> None:
    said = document.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(COMMAND.findall(said)) <= set(COMMANDS)
    assert set(TARGET.findall(said)) <= targets
    files = set(FILE.findall(said)) - {name for name, _ in EXAMPLE.findall(said)}
    assert sorted(name for name in files if not (ROOT / name).is_file()) == []


def test_every_demand_is_listed_once() -> None:
    wanted = [f"{group}{n}" for group, count in GROUPS.items() for n in range(1, count + 1)]
    assert [row[0] for row in DEMAND_ROW.findall(text("demands.md"))] == wanted


def test_every_demand_and_failure_that_a_mark_names_is_listed() -> None:
    listed = {row[0] for row in DEMAND_ROW.findall(text("demands.md"))} | {str(n + 1) for n in range(FAILURES)}
    assert {mark for marks in marks_by_test().values() for mark in marks} - listed == set()


def test_tests_of_every_demand_are_counted() -> None:
    document = text("demands.md")
    assert with_counts(document) == document, "run `python -m tests.demands`"


def test_decisions_are_numbered_without_a_gap() -> None:
    found = sorted((ROOT / "docs/decisions").glob("*.md"))
    titles = [(p.name[:4], p.read_text(encoding="utf-8").split(":")[0]) for p in found]
    assert titles == [(f"{n:04}", f"# {n:04}") for n in range(1, len(found) + 1)]


def test_met_demand_has_a_test_and_an_unmet_one_none() -> None:
    rows = DEMAND_ROW.findall(text("demands.md"))
    assert [demand for demand, tests, left in rows if left.strip() == "" and tests == "0"] == []
    assert [demand for demand, tests, left in rows if left.strip() == "all" and tests != "0"] == []


def test_every_failure_is_listed_once_with_a_test_of_its_mark() -> None:
    rows = FAILURE_ROW.findall(text("failure-modes.md"))
    assert [int(number) for number, _ in rows] == list(range(1, FAILURES + 1))
    assert [n for n, name in rows if name not in {test.split("::")[1] for test in marked_with(n)}] == []


def test_every_setting_is_in_the_runbook() -> None:
    named = set(re.findall(r"^\| `(SAS_\w+)", text("operations.md"), re.MULTILINE))
    wanted = {f"SAS_{name.upper()}" for name in Settings.model_fields} - {"SAS_SERVICES", "SAS_ACCESS"}
    assert named == wanted | {
        "SAS_SERVICES__",
        "SAS_ACCESS__",
        "SAS_AGENTS",
        "SAS_BY",
        "SAS_DEFINITIONS",
        "SAS_SAMPLES",
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    targets = [(document.parent / file, anchor) for file, anchor in LINK.findall(document.read_text(encoding="utf-8"))]
    assert [path for path, _ in targets if not path.exists()] == []
    assert [(path, anchor) for path, anchor in targets if anchor and anchor not in anchors(path)] == []


def anchors(document: Path) -> set[str]:
    """What links may name of a document: its headings as GitHub writes them."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_documents_are_short() -> None:
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in DOCUMENTS}
    assert words[ROOT / "README.md"] <= 1_200
    assert sum(count for path, count in words.items() if path.is_relative_to(ROOT / "docs")) <= 13_500


def test_ten_minute_path_is_six_files_and_800_lines() -> None:
    files = PATH.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(files) == 6
    assert sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files) <= 800


def test_task_type_in_the_readme_loads(tmp_path: Path) -> None:
    examples = EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [name for name, _ in examples] == ["activities/agents/loyalty.py", "definitions/welcome.py"]
    for name, code in examples:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(code, encoding="utf-8")
    program = (
        "import activities.agents, definitions\n"
        f"activities.agents.__path__.append({str(tmp_path / 'activities/agents')!r})\n"
        f"definitions.__path__.append({str(tmp_path / 'definitions')!r})\n"
        "print(definitions.registry().names())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "['order', 'provisioning', 'welcome']", done.stderr
