"""The ledger of one service: what it did, for which key, and the rules that decide what it may do.

Each public write is one SQLite transaction, committed before it returns, so an answer that was given
is never forgotten, not even by `kill -9`. A ledger belongs to one thread.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from devstack.simulators.messages import Answer, Call, Json, canonical, fingerprint, refusal

_SCHEMA = Path(__file__).with_name("schema.sql").read_text()


class Ledger:
    """Effects, tombstones, fences and calls of one service, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        """Opens the file and creates it if need be."""
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")  # safe against the death of the process
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Returns all rows of one read."""
        return self._connection.execute(sql, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits what the block wrote, or nothing of it if the block raises."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def record_call(self, call: Call, faults: Sequence[str] = (), *, duplicate: bool = False) -> int:
        """Records that a call arrived and returns its number; `faults` are the kinds injected into it."""
        with self.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO call (key, task_id, path, undo, token, time_left_ms, received_at, duplicate,"
                " faults, outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'received')",
                (call.key, call.task_id, call.path, call.undo, call.token, call.time_left_ms, now(),
                 duplicate, json.dumps(list(faults))),
            )  # fmt: skip
        return int(cursor.lastrowid or 0)

    def record_probe(self, call: Call) -> None:
        """Records that somebody asks what became of a key."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO probe (key, task_id, token, time_left_ms, received_at) VALUES (?, ?, ?, ?, ?)",
                (call.key, call.task_id, call.token, call.time_left_ms, now()),
            )

    def settle(self, call_id: int, outcome: str, status: int | None = None) -> None:
        """Records what became of a call that had no effect."""
        with self.transaction() as connection:
            _settle(connection, call_id, outcome, status)

    def create(
        self, call_id: int, call: Call, request: Json, execute: Callable[[], Answer], *, fenced: bool = True
    ) -> Answer:
        """Carries a request out once; a repetition gets the saved answer.

        Args:
            call_id: What `record_call` returned.
            call: A call with key and token.
            request: The JSON body as it was sent.
            execute: Decides the answer; asked only if the key is new. A 4xx is saved as a refusal.
            fenced: Whether older tokens are refused.

        Returns:
            The new or saved answer; 412 `stale_token`; 410 `undone` if an undo was here first;
            422 `idempotency_key_reused` if the key came with another body before.
        """
        with self.transaction() as connection:
            answer = (_fence(connection, call) if fenced else None) or _repeated(connection, call, request)
            if answer is None:
                answer = execute()
                _save(connection, call, request, answer)
            _settle(connection, call_id, answer.outcome, answer.status)
        return answer

    def undo(
        self,
        call_id: int,
        call: Call,
        keys: Sequence[str],
        create_path: str,
        *,
        refused: Answer | None = None,
        fenced: bool = True,
        tombstones: bool = True,
    ) -> Answer:
        """Takes back the effects of the keys; those that have none are barred from ever having one, by `tombstones`.

        The answer, or the refusal that is given in its place, is saved under the undo's own key; a repetition gets it.
        Under another key all is done anew, which is safe: `undone` counts effects that stand reversed, whichever call
        reversed them.
        """
        with self.transaction() as connection:
            answer = (_fence(connection, call) if fenced else None) or _undo_repeated(connection, call)
            if answer is None:
                if not tombstones:
                    keys = [k for k in keys if _find(connection, k) is not None]
                answer = refused or _undo_all(connection, call, keys, create_path)
                _save_undo(connection, call, answer)
            _settle(connection, call_id, answer.outcome, answer.status)
        return answer

    def find(self, key: str) -> sqlite3.Row | None:
        """Returns the row of a key, if the service knows it."""
        return _find(self._connection, key)

    def clear(self) -> None:
        """Forgets everything."""
        with self.transaction() as connection:
            for table in ("operation", "fence", "call", "probe", "undo_answer", "callback"):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 - fixed names


def now() -> str:
    """Returns the current instant as the ledger writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _fence(connection: sqlite3.Connection, call: Call) -> Answer | None:
    """Refuses a token below the highest one seen for the task, else remembers it."""
    row = connection.execute("SELECT token FROM fence WHERE task_id = ?", (call.task_id,)).fetchone()
    if row is not None and call.token is not None and call.token < row["token"]:
        message = f"token {call.token} of task {call.task_id} is older than {row['token']}, seen before"
        return refusal(412, "stale_token", message)
    connection.execute(
        "INSERT INTO fence (task_id, token) VALUES (?, ?) ON CONFLICT (task_id) DO UPDATE SET token = excluded.token",
        (call.task_id, call.token),
    )
    return None


def _repeated(connection: sqlite3.Connection, call: Call, request: Json) -> Answer | None:
    """Returns the answer to a key that was seen before, None for a new one."""
    row = _find(connection, call.key)
    if row is None:
        return None
    if row["state"] in ("undone", "tombstone"):
        return refusal(410, "undone", f"key {call.key} was undone at {row['undone_at']}")
    if row["fingerprint"] != fingerprint(request):
        return refusal(422, "idempotency_key_reused", f"key {call.key} came with another body before")
    return _replayed(row)


def _undo_repeated(connection: sqlite3.Connection, call: Call) -> Answer | None:
    """Returns the answer to the key of an undo that was seen before, None for a new one."""
    row = connection.execute("SELECT * FROM undo_answer WHERE key = ?", (call.key,)).fetchone()
    return None if row is None else _replayed(row)


def _replayed(row: sqlite3.Row) -> Answer:
    return Answer(row["status"], json.loads(row["answer"]), "replayed", {"Idempotent-Replayed": "true"})


def _save(connection: sqlite3.Connection, call: Call, request: Json, answer: Answer) -> None:
    state = "done" if answer.status < 400 else "refused"
    connection.execute(
        "INSERT INTO operation (key, task_id, step, path, state, token, fingerprint, body, status, answer,"
        " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (call.key, call.task_id, _step(call.key), call.path, state, call.token, fingerprint(request),
         canonical(request), answer.status, canonical(answer.body), now()),
    )  # fmt: skip


def _save_undo(connection: sqlite3.Connection, call: Call, answer: Answer) -> None:
    row = (call.key, answer.status, canonical(answer.body))
    connection.execute("INSERT INTO undo_answer (key, status, answer) VALUES (?, ?, ?)", row)


def _undo_all(connection: sqlite3.Connection, call: Call, keys: Sequence[str], create_path: str) -> Answer:
    states = [_undo_one(connection, call, key, create_path) for key in dict.fromkeys(keys)]
    undone = states.count("undone")
    return Answer(200, {"undone": undone, "nothing_to_undo": len(states) - undone}, "executed")


def _undo_one(connection: sqlite3.Connection, call: Call, key: str, create_path: str) -> str:
    """Moves one key to `undone` or `tombstone`, whichever holds, and returns that state."""
    row = connection.execute(
        "INSERT INTO operation (key, task_id, step, path, state, token, created_at, undone_at)"
        " VALUES (:key, :task_id, :step, :path, 'tombstone', :token, :now, :now)"
        " ON CONFLICT (key) DO UPDATE SET"
        " state = CASE WHEN state IN ('done', 'undone') THEN 'undone' ELSE 'tombstone' END,"
        " undone_at = coalesce(undone_at, excluded.undone_at)"
        " RETURNING state",
        {"key": key, "task_id": call.task_id, "step": _step(key), "path": create_path,
         "token": call.token, "now": now()},
    ).fetchone()  # fmt: skip
    return str(row["state"])


def _settle(connection: sqlite3.Connection, call_id: int, outcome: str, status: int | None) -> None:
    connection.execute(
        "UPDATE call SET outcome = ?, status = ?, decided_at = ? WHERE id = ?", (outcome, status, now(), call_id)
    )


def _find(connection: sqlite3.Connection, key: str | None) -> sqlite3.Row | None:
    row: sqlite3.Row | None = connection.execute("SELECT * FROM operation WHERE key = ?", (key,)).fetchone()
    return row


def _step(key: str | None) -> str:
    return (key or "").split(":")[1]
