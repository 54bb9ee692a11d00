"""Parts of the command line that need no servers: how input is split, how a record is amended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.app import ExitCode, gravest, required_text
from cli.messages import read_messages
from definitions.order import ORDER
from domain.faults import UsageError
from operators.amend import amended
from store.connection import place_of


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"task_id": "a"}', [1]),
        ('\n\n{\n "task_id": "a"\n}\n', [3]),
        ('\ufeff{"task_id": "a"}\r\n\r\n{"task_id": "b"}\r\n', [1, 3]),
        ('{"task_id": "a"\n{"task_id": "b"}', [1, 2]),
        ('{"task_id": "a", bad}\n{"task_id": "b", bad}', [1, 2]),
        ('{\n "task_id": "a"\n "lines": [\n  {"sku": "x"}\n ]\n}', [1]),
        ("nonsense\n" + "[" * 100_000, [1, 2]),
    ],
    ids=["one", "pretty", "lines-with-bom", "cut-first-line", "all-bad", "bad-pretty", "nonsense"],
)
def test_input_is_one_object_or_one_a_line(tmp_path: Path, text: str, lines: list[int]) -> None:
    file = tmp_path / "in"
    file.write_text(text, newline="")
    assert [m.line for m in read_messages(str(file))] == lines


@pytest.mark.failure(104)
@pytest.mark.parametrize(
    ("dsn", "where"),
    [
        ("postgresql://u:p@db/state", "db:5432/state"),
        ("postgresql://u:p@[::1]:5433/state", "[::1]:5433/state"),
        ("postgresql://u:p@[::1],db:5433/state", "[::1]:5432,db:5433/state"),
        ("host=::1,fe80::1 port=5433 dbname=state", "[::1]:5433,[fe80::1]:5433/state"),
    ],
)
def test_place_of_a_database_can_be_used_as_an_address(dsn: str, where: str) -> None:
    assert place_of(dsn) == where


def test_gravest_outcome_decides_the_exit_code() -> None:
    codes = [ExitCode.OK, ExitCode.FAILED, ExitCode.TIMED_OUT, ExitCode.USAGE, ExitCode.CONFLICT, ExitCode.UNREACHABLE]
    assert [gravest(codes[: n + 1]) for n in range(len(codes))] == codes
    assert gravest([]) is ExitCode.OK


@pytest.mark.failure(84)
def test_long_reason_on_the_command_line_is_cut() -> None:
    assert required_text("--reason", " " + "x" * 10_000) == "x" * 500


@pytest.mark.failure(111)
def test_amendment_reads_json_or_text_and_hides_secrets(order: dict[str, Any]) -> None:
    settings = ["lines.0.quantity=3", "address.line1=Rue 1", 'customer.name="A=B"', "card_token=tok_mc"]
    record, changes = amended(order, settings, ORDER)
    assert record["lines"][0]["quantity"] == 3
    assert (record["address"]["line1"], record["customer"]["name"]) == ("Rue 1", "A=B")
    audited = {c.path: c.audited() for c in changes}
    assert audited["lines.0.quantity"] == {"from": 2, "to": 3}
    assert audited["card_token"] == {"from": "[redacted]", "to": "[redacted]"}
    assert order["lines"][0]["quantity"] == 2, "the record itself is left alone"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("address.line1", "is not of the form path=value"),
        ("=1", "is not of the form path=value"),
        ("lines.7.quantity=1", "the record has nothing of that kind at lines.7"),
        ("lines.x=1", "the record has nothing of that kind at lines"),
        ("nothing.here=1", "the record has nothing of that kind at nothing"),
        ("currency=7", "currency: Input should be a valid string, not 7"),
        ("address.lane=1", "address.lane: Extra inputs are not permitted, not 1"),
        ("lines.0.unit_price_minor=-1", "not -1"),
    ],
)
def test_amendment_that_makes_no_record_names_field_and_value(order: dict[str, Any], setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        amended(order, [setting], ORDER)
