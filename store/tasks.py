"""How a task is written: its row is locked, the statement runs, and the task is read back, in one transaction.

Each statement is a compare-and-set. Where it changed nothing, the snapshot tells why: the row already says what was to
be written (an acknowledgement was lost, or the work was run twice), or it is no longer the caller's. Repeating is safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from domain.states import EventKind
from store.database import BeforeCommit, Database, Params
from store.queries import query
from store.snapshot import Snapshot


class Tasks:
    """Tasks, written and read one by one.

    `on_settled` is called whenever a write of this process has let go of a task, or lets it wait: a slot is free.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.on_settled: Callable[[], None] = lambda: None

    async def write(
        self, statement: str, params: Params, *, before_commit: BeforeCommit | None = None
    ) -> tuple[bool, Snapshot | None]:
        """Lock, write, read back. Returns whether the statement changed the task, and the task."""
        counts, rows = await self.database.transaction(
            (query("lock"), params), (query(statement), params), _snapshot(params), before_commit=before_commit
        )
        after = Snapshot.model_validate(rows[2][0]) if rows[2] else None
        if after is None or after.locked_by is None or after.waiting:
            self.on_settled()
        return counts[1] > 0, after

    async def was_written(self, task_id: str, kind: EventKind, actor: str, request: str | None = None) -> bool:
        """Whether a write that changed nothing had been committed before: then its acknowledgement was lost."""
        params = {"task_id": task_id, "kind": kind.value, "actor": actor, "request": request}
        return bool(await self.database.rows(query("was_written"), params))

    async def find_all(self, task_ids: Sequence[str]) -> list[Snapshot]:
        """The tasks of those ids, as they are now; unknown ids are left out."""
        _, rows = await self.database.transaction(*[_snapshot({"task_id": t}) for t in task_ids])
        return [Snapshot.model_validate(r[0]) for r in rows if r]

    async def find(self, task_id: str) -> Snapshot | None:
        """One task, as it is now."""
        return next(iter(await self.find_all([task_id])), None)


def _snapshot(params: Params) -> tuple[str, Params]:
    """The task that the parameters name, with what they say is done or begun."""
    return query("snapshot"), {"done": None, "begin": None, "original": False, **params}
