"""What a ledger tells a checker: its rows as JSON, and its counts."""

import json
import sqlite3
from collections.abc import Iterable
from typing import Any

from devstack.simulators.ledger import Ledger
from devstack.simulators.messages import Json

_ORDINARY = ("executed", "replayed", "received")  # every other outcome without a fault is a refusal
_EFFECT = ("key", "task_id", "step", "path", "state", "token", "body", "status", "created_at", "undone_at")
_TOMBSTONE = ("key", "task_id", "step", "path", "token", "created_at", "undone_at")


def ledger_rows(ledger: Ledger, task_id: str | None = None) -> Json:
    """Returns effects, tombstones, calls, refusals and probes, each in the order of arrival.

    Args:
        ledger: The service's ledger.
        task_id: Only what belongs to this task; None means all of it.
    """
    condition = "?1 IS NULL OR task_id = ?1" if task_id is None else "task_id = ?1"
    operations = ledger.query(
        f"SELECT * FROM operation WHERE {condition} ORDER BY created_at, rowid",  # noqa: S608 - fixed text
        (task_id,),
    )
    calls = [_call(row) for row in ledger.query(
        f"SELECT * FROM call WHERE {condition} ORDER BY id", (task_id,)  # noqa: S608 - fixed text
    )]  # fmt: skip
    return {
        "effects": _pick(operations, _EFFECT, ("done", "undone")),
        "tombstones": _pick(operations, _TOMBSTONE, ("tombstone",)),
        "calls": calls,
        "refusals": [call for call in calls if _is_refusal(call)],
        "probes": [
            {**dict(row), "undo": False, "duplicate": False, "outcome": "probe"}
            for row in ledger.query(f"SELECT * FROM probe WHERE {condition} ORDER BY id", (task_id,))  # noqa: S608
        ],
    }


def summary(ledger: Ledger) -> Json:
    """Returns how many calls, effects, undone effects, tombstones, refusals, replays and faults there are."""
    states = _counts(ledger, "SELECT state, count(*) FROM operation GROUP BY state")
    return {
        "calls": _count(ledger, "SELECT count(*) FROM call"),
        "effects_live": states.get("done", 0),
        "undone": states.get("undone", 0),
        "tombstones": states.get("tombstone", 0),
        "refusals": _counts(
            ledger,
            "SELECT outcome, count(*) FROM call WHERE outcome NOT IN ('executed', 'replayed', 'received')"
            " AND outcome NOT LIKE 'fault:%' GROUP BY outcome",
        ),
        "duplicate_deliveries": _count(ledger, "SELECT count(*) FROM call WHERE duplicate"),
        "replays": _count(ledger, "SELECT count(*) FROM call WHERE outcome = 'replayed'"),
        "faults": _counts(ledger, "SELECT value, count(*) FROM call, json_each(call.faults) GROUP BY value"),
    }


def money(ledger: Ledger) -> Json:
    """Returns what was ever charged and what of it was refunded, in minor units of any currency."""
    (row,) = ledger.query(
        "SELECT total(body ->> 'amount_minor') AS charged_minor,"
        " total(iif(state = 'undone', body ->> 'amount_minor', 0)) AS refunded_minor"
        " FROM operation WHERE state IN ('done', 'undone')"
    )
    return {name: int(row[name]) for name in row.keys()}  # noqa: SIM118 (a row iterates over its values)


def _pick(rows: Iterable[sqlite3.Row], columns: tuple[str, ...], states: tuple[str, ...]) -> list[Json]:
    return [
        {column: json.loads(row[column]) if column == "body" else row[column] for column in columns}
        for row in rows
        if row["state"] in states
    ]


def _call(row: sqlite3.Row) -> Json:
    flags = {"undo": bool(row["undo"]), "duplicate": bool(row["duplicate"])}
    return {**dict(row), **flags, "faults": json.loads(row["faults"])}


def _is_refusal(call: Json) -> bool:
    return call["outcome"] not in _ORDINARY and not call["outcome"].startswith("fault:")


def _counts(ledger: Ledger, sql: str) -> dict[str, int]:
    return {row[0]: row[1] for row in ledger.query(sql)}


def _count(ledger: Ledger, sql: str) -> int:
    value: Any = ledger.query(sql)[0][0]
    return int(value)
