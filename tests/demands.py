"""Which test shows which demand: read from the marks, and written into `docs/demands.md`.

`python -m tests.demands` names at each demand every test that is marked with it, and counts what is met.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "demands.md"
ROW = re.compile(r"^\| ([A-H]\d+) \| ([^|]+) \| (met|partly|not yet) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+)`")
COUNTS = re.compile(r"Of \d+: \d+ met, \d+ partly, \d+ not yet\.")


@cache
def marks_by_test() -> dict[str, set[str]]:
    """Every test function by name, with the demands that it is marked with."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, set()).update(*(_marked(d) for d in node.decorator_list))
    return found


def with_tests(document: str) -> str:
    """The document with the tests of each demand named in its last column, behind what is said there in words."""
    statuses = [row[2] for row in ROW.findall(document)]
    counts = [statuses.count(status) for status in ("met", "partly", "not yet")]
    counted = "Of {}: {} met, {} partly, {} not yet.".format(len(statuses), *counts)
    return COUNTS.sub(counted, ROW.sub(_row, document))


def _row(found: re.Match[str]) -> str:
    demand, what, status, cell = found.groups()
    words = [part for part in cell.split("; ") if not NAMED.search(part) and part != "–"]
    tests = ", ".join(f"`{name}`" for name, marks in marks_by_test().items() if demand in marks)
    return f"| {demand} | {what} | {status} | {'; '.join([*words, *filter(None, [tests])]) or '–'} |"


def _marked(decorator: ast.expr) -> set[str]:
    """The ids of a `@pytest.mark.demand`; none for any other decorator."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.demand":
        return set()
    return {str(ast.literal_eval(argument)) for argument in decorator.args}


if __name__ == "__main__":
    DOCUMENT.write_text(with_tests(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
