"""How long a dispatcher pauses whose starts fail, on a clock that stands still until somebody waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Collection, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from definitions import registry
from domain.states import TaskState
from runtime.dispatcher import Dispatcher
from store.claims import Claim
from store.orders import Record
from store.snapshot import Snapshot

CLAIM = Claim(
    Snapshot(
        task_id="t",
        definition="order",
        version=1,
        state=TaskState.PROCESSING,
        locked_by="order/t/1",
        run_id=None,
        claim_nonce="nonce",
        epoch=1,
        submitter="test",
        record_digest="digest",
        waiting=False,
        time_left_s=10.0,
        steps=[],
        undo_log=[],
    ),
)


class Skipping(selectors.DefaultSelector):
    """Waits for nothing: what it should have waited for at most is over at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready; if nothing is, time has passed."""
        ready = super().select(0)
        self.now += 0.0 if ready else timeout or 0.0
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock nobody has to wait for."""

    def __init__(self) -> None:
        self._clock = Skipping()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since it was made."""
        return self._clock.now


class Outage:
    """A dispatcher that has one task to start in each of so many rounds; Temporal answers in those that are `well`.

    It stands for Temporal's client and for the stores as well.
    """

    def __init__(self, *, rounds: int, well: Collection[int] = ()) -> None:
        self._rounds, self._well = rounds, well
        self.began_at: list[float] = []
        self.draining = asyncio.Event()
        own: Any = self
        self.claims = self
        terms: dict[str, Any] = {"worker": "worker", "slots": 1}
        self._dispatcher = Dispatcher(own, own, own, own, registry(), **terms, draining=self.draining)

    async def run(self) -> None:
        """Dispatch until the worker drains; somebody wakes the dispatcher every second."""
        waking = asyncio.create_task(self._wake())
        await self._dispatcher.run()
        waking.cancel()

    async def _wake(self) -> None:
        while True:
            self._dispatcher.wake()
            await asyncio.sleep(1)

    async def lease(self, _: Any) -> bool:
        """No service is out."""
        return False

    async def load(self, ids: Sequence[str]) -> dict[str, Record]:
        """A round begins; with the last one the worker drains."""
        self.began_at.append(asyncio.get_running_loop().time())
        if len(self.began_at) == self._rounds:
            self.draining.set()
        return {i: Record({}, "digest") for i in ids}

    async def next_due(self, *_: Any) -> None:
        """Nothing waits for its time."""

    async def claim(self, *_: Any, states: Sequence[TaskState]) -> list[Claim]:
        """There is always one that goes forward."""
        return [CLAIM] if TaskState.PENDING in states else []

    async def start_workflow(self, *_: Any, **__: Any) -> Any:
        """Starts it, or does not answer."""
        if len(self.began_at) not in self._well:
            raise RPCError("no answer", RPCStatusCode.UNAVAILABLE, b"")
        return SimpleNamespace(result_run_id="run")

    async def not_started(self, *_: Any, **__: Any) -> None:
        """It may be claimed again."""


@pytest.fixture(autouse=True)
def nothing_to_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """No database notifies anybody."""
    monkeypatch.setattr(Dispatcher, "_listen", lambda _: asyncio.Event().wait())


@pytest.mark.failure(41)
def test_dispatcher_with_failing_starts_pauses_up_to_half_a_minute() -> None:
    async def rounds() -> list[float]:
        outage = Outage(rounds=10, well=[8])
        await outage.run()
        return outage.began_at

    with asyncio.Runner(loop_factory=Loop) as runner:
        pauses = [after - before for before, after in pairwise(runner.run(rounds()))]
    longest = [2, 4, 8, 16, 30, 30, 30, 0, 2]  # none behind the round that goes well, and then as at first
    assert [p for p, most in zip(pauses, longest, strict=True) if not most / 2 <= round(p, 6) <= most] == [], pauses


@pytest.mark.failure(41)
def test_pause_of_a_dispatcher_ends_when_its_worker_drains() -> None:
    async def until_drained() -> float:
        outage, loop = Outage(rounds=100), asyncio.get_running_loop()
        loop.call_later(20, outage.draining.set)
        await outage.run()
        return loop.time()

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(until_drained()) == pytest.approx(20)
