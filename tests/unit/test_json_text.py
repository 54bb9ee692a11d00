"""JSON as others send it: read in one way only, or refused with the place and the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.json_text import MOST_DEPTH, BadJson, read_json

DEEP = "[" * MOST_DEPTH + "]" * MOST_DEPTH


@pytest.mark.failure(23)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": [1, NaN]}', "a.1: NaN is no number of JSON"),
        ('{"a": Infinity}', "a: Infinity is no number of JSON"),
        ('{"a": -Infinity}', "a: -Infinity is no number of JSON"),
        ("NaN", "NaN is no number of JSON"),
        ('{"a": 1e999}', "a: a number too large to be kept, 1e999"),
        ('{"a": -1e999}', "a: a number too large to be kept, -1e999"),
        ('{"a": 18446744073709551616}', "a: an integer of more than 64 bits, 18446744073709551616"),
        ('{"a": -9223372036854775809}', "a: an integer of more than 64 bits, -9223372036854775809"),
        (f'{{"a": 1{"0" * 400}}}', "a: an integer of more than 64 bits, 10000000000000000000… (401 characters)"),
        (f'{{"a": 1{"0" * 5000}}}', "a: an integer of more than 64 bits, 10000000000000000000… (5001 characters)"),
        ('{"a": {"b": "x\\u0000"}}', "a.b: a text with NUL or half a surrogate pair, which can't be stored"),
        ('{"a": "\\ud800"}', "a: a text with NUL or half a surrogate pair, which can't be stored"),
        ('{"a": "\\udc00\\ud800"}', "a: a text with NUL or half a surrogate pair, which can't be stored"),
        ('{"x\\u0000": 1}', "x\x00: a key with NUL or half a surrogate pair, which can't be stored"),
        ('{"\\ud800": 1}', "\\ud800: a key with NUL or half a surrogate pair, which can't be stored"),
        ('{"a": 1, "a": 1}', "a: given twice"),
        ('{"a": [{"b": {"c": 1, "d": 2, "c": 3}}]}', "a.0.b.c: given twice"),
        (f'{{"a": {DEEP}}}', f"a{'.0' * 29}.…: nested deeper than {MOST_DEPTH} levels"),
        ("[" * 200_000, f"nested deeper than {MOST_DEPTH} levels"),
        ('{"a": 1}\n{"a": 1}', "Invalid JSON: Extra data at line 2 column 1"),
        ("", "Invalid JSON: Expecting value at line 1 column 1"),
        ('{"a": "\t"}', "Invalid JSON: Invalid control character at at line 1 column 8"),
        (b'{"a": "\xff"}', "not UTF-8: byte 0xff at column 8"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8: byte 0xed at column 8"),
        ("{'a': 1}", "Invalid JSON: Expecting property name enclosed in double quotes at line 1 column 2"),
    ],
    ids=range(25),
)
@pytest.mark.demand("A1")
def test_what_can_not_be_kept_is_refused_by_place_and_reason(text: str | bytes, problem: str) -> None:
    with pytest.raises(BadJson) as refused:
        read_json(text)
    assert refused.value.problems == [problem]


def test_every_problem_of_a_text_is_told() -> None:
    with pytest.raises(BadJson, match=r"^a: NaN is .*; b\.0: a number too large.*; c: given twice$"):
        read_json('{"a": NaN, "b": [1e999], "c": 1, "c": 2}')


@pytest.mark.parametrize(
    "value",
    [{}, [], "é😀\u2028", 2**64 - 1, -(2**63), 0.1, 1e308, 1.0, True, None, {"a": [{"a": [0]}]}, json.loads(DEEP)],
    ids=range(12),
)
def test_any_other_json_is_read_as_it_is(value: Any) -> None:
    read = read_json(json.dumps(value))
    assert read == value
    assert type(read) is type(value)
