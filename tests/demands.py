"""Which tests show which demand of the pattern, and which failure mode: read from the marks of the tests.

`python -m tests.demands` counts the tests of each demand in `docs/demands.md`. `python -m tests.demands B3 31` lists
the tests of demand B3 and of row 31 of `docs/failure-modes.md`.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "demands.md"
ROW = re.compile(r"^\| ([A-H]\d+) \| ([^|]+) \| \d* \|( [^|]+)? \|$", re.MULTILINE)
COUNTS = re.compile(r"Of \d+: \d+ met, \d+ partly, \d+ not yet\.")
MARKS = ("pytest.mark.demand", "pytest.mark.failure")


@cache
def marks_by_test() -> dict[str, set[str]]:
    """Every test as `file::name`, with the demands (`B3`) and failure modes (`31`) that it is marked with."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                test = f"{path.relative_to(ROOT)}::{node.name}"
                found.setdefault(test, set()).update(*(_marked(d) for d in node.decorator_list))
    return found


def marked_with(mark: str) -> list[str]:
    """The tests that are marked with a demand or a failure mode."""
    return [test for test, marks in marks_by_test().items() if mark in marks]


def with_counts(document: str) -> str:
    """The document with the number of tests of each demand, and of demands by how far they are met."""
    left = [row[2].strip() for row in ROW.findall(document)]
    met, not_yet = left.count(""), left.count("all")
    counted = f"Of {len(left)}: {met} met, {len(left) - met - not_yet} partly, {not_yet} not yet."
    return COUNTS.sub(counted, ROW.sub(_row, document))


def _row(found: re.Match[str]) -> str:
    demand, what, left = found.groups()
    return f"| {demand} | {what} | {len(marked_with(demand))} |{left or ''} |"


def _marked(decorator: ast.expr) -> set[str]:
    """The ids of a mark for a demand or a failure mode; none for any other decorator."""
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) not in MARKS:
        return set()
    return {str(ast.literal_eval(argument)) for argument in decorator.args}


if __name__ == "__main__":
    for mark in sys.argv[1:]:
        print(mark, *marked_with(mark), sep="\n  ")
    if not sys.argv[1:]:
        DOCUMENT.write_text(with_counts(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
