"""Claims: which tasks a worker holds, how they come to it, and how a claim that started no run is given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from domain.ids import attempt_id
from domain.states import CLAIMABLE, TaskState
from store.database import Params
from store.queries import query
from store.snapshot import Snapshot
from store.tasks import Tasks

CHANNEL = "task_claimable"
"""On which the database tells dispatchers that a task may be claimed, now or later: its state."""

_LONGEST_PAUSE = timedelta(minutes=5)
"""Of a task whose claims end in one and the same fault again and again."""


@dataclass(frozen=True)
class Hold:
    """The lock owner: an attempt, and the Temporal run that carries it out; `nonce`: of the claim that started it."""

    task_id: str
    locked_by: str
    run_id: str
    nonce: str

    @property
    def epoch(self) -> int:
        """Epoch of the attempt."""
        return int(self.locked_by.rsplit("/", 1)[1])

    def holds(self, task: Snapshot) -> bool:
        """Whether this run holds the task, in time or not; one not yet bound to it knows the nonce of its claim."""
        bound = task.run_id == self.run_id or (task.run_id is None and task.claim_nonce == self.nonce)
        return bound and task.locked_by == self.locked_by

    @property
    def params(self) -> dict[str, Any]:
        """As parameters of a guarded statement."""
        return {"task_id": self.task_id, "locked_by": self.locked_by, "run_id": self.run_id, "nonce": self.nonce}


@dataclass(frozen=True)
class Claim:
    """A task that was claimed."""

    task: Snapshot

    @property
    def locked_by(self) -> str:
        """Workflow id of the attempt that was claimed."""
        return attempt_id(self.task.definition, self.task.task_id, self.task.epoch)

    def hold(self, run_id: str) -> Hold:
        """As the run that it started."""
        return Hold(self.task.task_id, self.locked_by, run_id, self.task.claim_nonce or "")


class Claims:
    """Claims of workers. `claim_within`: time that a claim has to start its run, and a run to begin a step."""

    def __init__(self, tasks: Tasks, claim_within: timedelta) -> None:
        self._tasks, self._claim_within = tasks, claim_within

    async def claim(
        self,
        worker: str,
        loaded: Sequence[tuple[str, int]],
        slots: int,
        task_ids: Sequence[str] | None = None,
        *,
        states: Sequence[TaskState] = CLAIMABLE,
    ) -> list[Claim]:
        """Claim for `worker`, which has the definitions `loaded`, as many tasks as are free of its `slots`.

        `states`: to go forward, to be undone, or both; with `task_ids`, none but those.
        """
        params = {
            "worker": worker,
            "slots": slots,
            "task_ids": None if task_ids is None else list(task_ids),
            "claim_within_s": self._claim_within.total_seconds(),
            **_wanted(loaded, states),
        }
        rows = await self._tasks.database.rows(query("claim"), params)
        claimed = {(r["task_id"], r["epoch"]) for r in rows}
        found = await self._tasks.find_all([task_id for task_id, _ in claimed]) if claimed else []
        return [Claim(s) for s in found if (s.task_id, s.epoch) in claimed and s.locked_by is not None]

    async def count_held(self, worker: str) -> int:
        """How many tasks fill a worker's slots: claimed, not settled or given back, nor waiting for a later answer."""
        (row,) = await self._tasks.database.rows(query("count_held"), {"worker": worker})
        return int(row["held"])

    async def next_due(self, loaded: Sequence[tuple[str, int]], states: Sequence[TaskState]) -> timedelta | None:
        """How long until the next task is due that could be claimed then; None if none waits for its time."""
        (row,) = await self._tasks.database.rows(query("next_due"), _wanted(loaded, states))
        return None if row["due_in_s"] is None else timedelta(seconds=row["due_in_s"])

    async def not_started(
        self,
        claim: Claim,
        cause: str,
        *,
        fault: str | None = None,
        alert: str | None = None,
        pause: timedelta,
        most: int | None = None,
    ) -> None:
        """Give a claim back whose run did not start, or may not have: only if none has bound itself yet.

        Args:
            claim: Whose. cause: for people.
            fault: What kind of fault it is, if it is one of this very task: each in a row doubles the pause.
            alert: What a person is told of that kind of fault, once an hour.
            pause: Before the next claim.
            most: So many of one fault in a row end the task: Error, or CompensationFailed for an undo, with an alert.
        """
        params = {
            **claim.hold("").params,
            "cause": cause,
            "fault": fault,
            "message": alert,
            "delay_s": pause.total_seconds(),
            "longest_s": _LONGEST_PAUSE.total_seconds(),
            "most": most,
        }
        await self._tasks.write("not_started", params)


def _wanted(loaded: Sequence[tuple[str, int]], states: Sequence[TaskState]) -> Params:
    return {
        "definitions": [name for name, _ in loaded],
        "versions": [version for _, version in loaded],
        "states": [state.value for state in states],
    }
