"""Plans of the claim and of the sweep: both read what they return, however many closed tasks there are (D10)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import ClientCursor, Connection

from devstack.servers.postgres import EmbeddedPostgres
from store.database import SESSION
from store.queries import query
from testing.databases import Databases

CLAIMABLE = 300
EXPIRED = 300
HELD = 200
PAGE = 50
SLOTS = 20

CLAIM = {
    "worker": "worker-7",
    "slots": SLOTS,
    "definitions": ["order", "provisioning"],
    "versions": [1, 1],
    "claim_within_s": 10.0,
    "task_ids": None,
    "states": ["Pending"],
}
EXPIRE = {"window_s": 604_800.0, "page": PAGE, "after_at": "-infinity", "after_id": "", "sweep": None, "within_s": 60.0}

TASKS = """
INSERT INTO task (
    task_id, definition, version, state, confirmed, locked_by, complete_by, epoch, worker, not_before, record_digest,
    submitter, data_class, last_event, state_since, created_at
)
SELECT
    %(kind)s || n, CASE WHEN %(kind)s = 'closed-' AND n %% 5 = 0 THEN 'provisioning' ELSE 'order' END, 1,
    (%(states)s::text[])[1 + n %% cardinality(%(states)s::text[])], true,
    CASE WHEN %(held)s THEN 'order/' || %(kind)s || n || '/1' END,
    CASE WHEN %(held)s THEN now() + %(due)s::interval - n * interval '1 second' END,
    1, CASE WHEN %(held)s THEN 'dead-' || n / 100 ELSE 'worker-' || n %% 300 END,
    now() + %(due)s::interval - n * interval '1 second', md5(n::text), 'shop', 'internal', 9,
    now() - n * interval '1 second', now() - n * interval '1 second'
FROM generate_series(%(first)s::int, %(last)s::int) AS n
"""
STEPS = """
INSERT INTO step (task_id, name, position, service, budget, budget_left, undo_budget, undo_budget_left)
SELECT task_id, name, position, name, 9, 9, 30, 30
FROM task, unnest(ARRAY['stock', 'charge', 'ship', 'confirm']) WITH ORDINALITY AS s (name, position)
WHERE state IN ('Pending', 'Processing', 'Compensating')
"""
CLOSED = ["Processed", "Processed", "Processed", "Compensated", "Error"]


def put(connection: Connection[Any], kind: str, states: list[str], last: int, *, first: int = 1, **more: Any) -> None:
    """Put tasks into the store, past every trigger."""
    params = {"kind": kind, "states": states, "first": first, "last": last, "held": False, "due": "0 seconds", **more}
    ClientCursor(connection).execute(TASKS, params)


@dataclass(frozen=True)
class Scan:
    """One scan of a table in a plan that was run. `read`: rows returned and rows thrown away, in all loops."""

    table: str
    kind: str
    index: str | None
    read: int
    pages: int


def scans(node: dict[str, Any]) -> Iterator[Scan]:
    """Every scan of a plan."""
    if "Relation Name" in node and node["Node Type"].endswith("Scan"):
        thrown = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield Scan(
            node["Relation Name"],
            node["Node Type"],
            node.get("Index Name") or next((c["Index Name"] for c in node.get("Plans", []) if "Index Name" in c), None),
            round((node["Actual Rows"] + thrown) * node["Actual Loops"]),
            node["Shared Hit Blocks"] + node["Shared Read Blocks"],
        )
    for child in node.get("Plans", []):
        yield from scans(child)


class Planner:
    """Runs statements under EXPLAIN, and takes back what they did."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def explain(self, name: str, params: dict[str, Any], mode: str) -> list[Scan]:
        """The scans of `task` of a statement, planned once for all parameters (`generic`) or for these (`custom`)."""
        names: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        text = re.sub(r"%\((\w+)\)s", number, query(name.partition(" ")[0])).replace("%%", "%")
        arguments = ", ".join(f"%({n})s" for n in names)
        with self._connection.transaction(force_rollback=True):
            cursor = ClientCursor(self._connection)
            for statement in SESSION:
                cursor.execute(statement)
            cursor.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan")
            cursor.execute(f"PREPARE stated AS {text}")
            explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE stated ({arguments})"
            cursor.execute(explain, params)
            row = cursor.fetchone()
            cursor.execute("DEALLOCATE stated")
        assert row is not None
        plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
        return [s for s in scans(plan[0]["Plan"]) if s.table == "task"]

    def pile_up(self, kind: str, states: list[str], number: int, **more: Any) -> None:
        """Let so many more tasks of a kind be there."""
        put(self._connection, kind, states, number, **more)
        self._connection.execute("ANALYZE task")


@pytest.fixture(scope="module")
def planner(templates: EmbeddedPostgres) -> Iterator[Planner]:
    """A store with a thousand closed tasks, some claimable, some expired, some held in time."""
    with Databases(templates) as databases, psycopg.connect(databases.owner, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        put(connection, "closed-", CLOSED, 1_000)
        put(connection, "claimable-", ["Pending", "Pending", "Compensating"], CLAIMABLE)
        put(connection, "later-", ["Pending"], CLAIMABLE, due="1 hour")
        put(connection, "expired-", ["Processing", "Compensating"], EXPIRED, held=True)
        put(connection, "held-", ["Processing"], HELD, held=True, due="1 hour")
        connection.execute(STEPS)
        connection.execute("VACUUM ANALYZE")
        yield Planner(connection)


def index_scan(found: list[Scan], index: str) -> Scan:
    """The one scan that used this index."""
    (scan,) = [s for s in found if s.index == index]
    return scan


MODES = ("custom", "generic")
PARAMS: dict[str, dict[str, Any]] = {
    "claim": CLAIM,
    "claim (undo)": {**CLAIM, "states": ["Compensating"]},
    "expired": EXPIRE,
}
CASES = [(name, mode) for name in PARAMS for mode in MODES]


def reads_only_what_it_returns(found: list[Scan], name: str) -> None:
    """No scan of the table but by the index that is meant for it, and no row read that is not returned."""
    assert all(s.index for s in found), found
    if name.startswith("claim"):
        assert index_scan(found, "task_claimable").read == SLOTS
        assert index_scan(found, "task_held_by_worker").read == 0
        # the rows that were chosen are found again by their key, to be changed
        assert {s.index for s in found} <= {"task_claimable", "task_held_by_worker", "task_pkey"}
        assert sum(s.read for s in found) <= 2 * SLOTS
    else:
        assert {s.index for s in found} == {"task_held"}
        assert sorted(s.read for s in found) == [1, PAGE], "the oldest one, and the page"


def reads_as_before(found: list[Scan], before: list[Scan]) -> None:
    """The same rows by the same indexes, and as many pages, but for a few that the claims left which were taken back.

    By its key a row is found one level deeper in a larger index.
    """
    assert [(s.index, s.read) for s in found] == [(s.index, s.read) for s in before]
    for now, then in zip(found, before, strict=True):
        assert now.index == "task_pkey" or now.pages <= then.pages + 8, (now, then)


@pytest.mark.failure(67, 73)
@pytest.mark.demand("D4", "D10", "H12")
@pytest.mark.timeout(180)
def test_claim_and_sweep_read_no_more_whatever_piles_up(planner: Planner) -> None:
    """First a million closed tasks, then an outage: 30,000 tasks due, and as many expired."""
    small = {(name, mode): planner.explain(name, PARAMS[name], mode) for name, mode in CASES}
    for (name, _), found in small.items():
        reads_only_what_it_returns(found, name)
    planner.pile_up("closed-", CLOSED, 1_000_000, first=1_001)
    for (name, mode), before in small.items():
        reads_as_before(planner.explain(name, PARAMS[name], mode), before)
    planner.pile_up("backlog-", ["Pending"], 30_000, due="-1 hour")
    planner.pile_up("outage-", ["Processing"], 30_000, held=True, due="-1 hour")
    for (name, mode), before in small.items():
        found = planner.explain(name, PARAMS[name], mode)
        assert [(s.index, s.read) for s in found] == [(s.index, s.read) for s in before]


@pytest.mark.demand("D10")
def test_claim_and_sweep_that_find_nothing_read_nothing(planner: Planner) -> None:
    nothing_due = {**CLAIM, "definitions": ["other"], "versions": [1]}
    behind_the_last_page = {**EXPIRE, "after_at": "infinity", "after_id": ""}
    for mode in MODES:
        assert sum(s.read for s in planner.explain("claim", nothing_due, mode)) == 0
        assert sum(s.read for s in planner.explain("expired", behind_the_last_page, mode)) <= 1
