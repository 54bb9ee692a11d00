"""The plot of the demo: orders come in, things break at moments chosen by what is going on, a person corrects one.

Every moment is found by looking at the state store and the ledgers, so the story is the same on a slow machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

from devstack.demo.board import Board
from devstack.demo.moment import Moment, is_held_by, look
from devstack.demo.services import SimulatorControl
from devstack.stack.embedded import EmbeddedStack
from domain.states import TaskState
from runtime.wiring import Stores
from store.orders import Amendment
from store.reads import Reads
from store.rows import Task
from store.submission import Accepted, Submission

LONGEST_S = 50.0
"""After so long the story ends as it stands, and the summary says what is missing."""

VICTIM = "worker-2"
OUTAGE_S = 4.0
CORRECT_LINE1 = "Hämeenkatu 17"
OPERATOR = "demo-operator"
_LOOK_EVERY_S = 0.2
_SLOW = {"latency_ms": 400, "jitter_ms": 800}
_LOST = {"rate": 0.25, "times": 6, "match": {"path": "/payments/charges"}}


@dataclass(frozen=True)
class Kill:
    """A worker that was killed, and the tasks that it then held."""

    process: str
    pid: int
    held: Sequence[str]


@dataclass
class Story:
    """What happens in the demo. `kills`, `corrected` and the last moment tell what did happen."""

    stack: EmbeddedStack
    stores: Stores
    reads: Reads
    control: SimulatorControl
    board: Board
    kills: list[Kill] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    _outage_at: float | None = None
    _seen_in_error_at: dict[str, float] = field(default_factory=dict)

    async def run(self, submissions: Sequence[Submission]) -> Moment:
        """Play it; returns how things stand at the end."""
        await self._let_services_fail()
        await self._submit(submissions)
        ids = [s.task_id for s in submissions]
        give_up_at = monotonic() + LONGEST_S
        while True:
            moment = await look(self.reads, self.control, ids)
            self.board.show(moment)
            if self._is_over(moment) or monotonic() > give_up_at:
                return moment
            await self._kill_at_a_bad_moment(moment)
            await self._break_shipping(moment)
            await self._correct_addresses(moment)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _let_services_fail(self) -> None:
        await self.control.fail("stock", "latency", **_SLOW)
        self.board.tell("fault", f"stock is slow: {_SLOW['latency_ms']} ms and up to {_SLOW['jitter_ms']} ms more")
        await self.control.fail("payments", "lost_reply", **_LOST)
        self.board.tell("fault", "payments charges, but loses one reply in four on the way back")

    async def _submit(self, submissions: Sequence[Submission]) -> None:
        verdicts = [await self.stores.desk.submit(s) for s in submissions]
        accepted = sum(isinstance(v, Accepted) for v in verdicts)
        self.board.tell("submitted", f"{accepted} of {len(verdicts)} tasks accepted")

    async def _kill_at_a_bad_moment(self, moment: Moment) -> None:
        """SIGKILL for a worker with work in hand; again, should it have finished all of it in the same moment."""
        victim = self.stack.process(VICTIM)
        pid = victim.pid
        if any(k.held for k in self.kills) or pid is None or not moment.in_state(TaskState.PROCESSED):
            return
        busy = [t for t in moment.tasks if is_held_by(t, pid) and moment.step_at_work(t)]
        if len(busy) < (4 if len(moment.settled()) < len(moment.tasks) // 3 else 1):
            return
        victim.kill()
        left = await self.reads.tasks([t.task_id for t in moment.tasks])
        held = sorted(t.task_id for t in left if is_held_by(t, pid))
        self.kills.append(Kill(VICTIM, pid, held))
        self.board.tell("fault", f"kill -9 of {VICTIM}, process {pid}, which holds {', '.join(held) or 'nothing'}")

    async def _break_shipping(self, moment: Moment) -> None:
        """Cut every connection to shipping for some seconds, once a third of the tasks have shipped."""
        shipped = moment.tally.count("shipping", "effects")
        if self._outage_at is None and self.kills and shipped >= len(moment.tasks) // 3:
            self._outage_at = monotonic()
            await self.control.fail("shipping", "outage", for_s=OUTAGE_S)
            self.board.tell("fault", f"shipping is out for {OUTAGE_S:g} s: every connection is cut")

    async def _correct_addresses(self, moment: Moment) -> None:
        """What a person does about an order in Error: look for two seconds, correct it, resubmit it."""
        for task in moment.in_state(TaskState.ERROR):
            seen_at = self._seen_in_error_at.setdefault(task.task_id, monotonic())
            if self._is_to_be_corrected(task) and monotonic() - seen_at > 2:
                await self._correct(task.task_id)

    async def _correct(self, task_id: str) -> None:
        found = (await self.stores.orders.load([task_id]))[task_id]
        record = found.record or {}
        wrong = record["address"]["line1"]
        corrected = {**record, "address": {**record["address"], "line1": CORRECT_LINE1}}
        self.board.tell("person", f"{task_id}: address.line1 is {CORRECT_LINE1!r}, not {wrong!r}; resubmitted")
        amendment = Amendment(task_id, corrected, found.amendments)
        await self.stores.store.requests.resubmit(
            task_id,
            requester=OPERATOR,
            reason="address corrected",
            changes={"address.line1": CORRECT_LINE1},
            amend=lambda: self.stores.orders.amend(amendment),
        )
        self.corrected.append(task_id)

    def _is_over(self, moment: Moment) -> bool:
        waiting = [t for t in moment.in_state(TaskState.ERROR) if self._is_to_be_corrected(t)]
        return len(moment.settled()) == len(moment.tasks) and not waiting

    def _is_to_be_corrected(self, task: Task) -> bool:
        """Whether a task waits for a person because nobody finds its address, and was not corrected in vain before."""
        return (task.error or {}).get("code") == "unknown_address" and task.task_id not in self.corrected
