"""One case of the crash matrix on a runner: what its script can do, and who follows whoever dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
from temporalio.service import RPCError

from chaos.matrix.case_runner import CaseRunner
from chaos.processes import Worker
from definitions import registry
from domain.definition import Registry
from domain.ids import undo_request_id
from domain.messages import Json
from domain.states import TaskState
from store.reads import TaskPage
from store.submission import Accepted, DeadLettered, Submission
from supervisor.schedule import SCHEDULE_ID
from testing.waiting import eventually


class CaseRun:
    """One case on a runner: a task, and the points at which somebody dies, one after the other."""

    def __init__(self, runner: CaseRunner, task_id: str, kills: tuple[str, ...], *, armed: bool, sweep: bool) -> None:
        self.runner, self.testbed, self.task_id = runner, runner.testbed, task_id
        self._left, self.fired = list(kills), list[str]()
        self.definition, self._over, self._sweep = "order", False, sweep
        self._beside = 0
        if armed:
            self.arm()

    @property
    def worker(self) -> Worker:
        """The worker, or its successor."""
        return self.testbed.worker(0)

    async def go(self, script: Callable[[CaseRun], Awaitable[None]]) -> None:
        """Carry out a script, and let a fresh process follow each that dies, until both are over."""
        following = asyncio.create_task(self._follow())
        scripted = asyncio.ensure_future(script(self))
        try:
            async with asyncio.timeout(120):
                await asyncio.wait([following, scripted], return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                await scripted
                with suppress(TimeoutError):
                    await self.all_fired(within_s=3)
        finally:
            self._over = True
            scripted.cancel()
            await asyncio.gather(following, scripted, return_exceptions=True)
            self.runner.kill_file.write_text("")
            self.heal()
            await self.runner.follow()

    async def _follow(self) -> None:
        while not self._over:
            for point in self.runner.killed():
                self.fired.append(point)
                self.arm()
            await self.runner.follow()
            await self.runner.hurry(self.task_id, sweep=self._sweep)
            await asyncio.sleep(0.05)

    # --- words of the scenarios -------------------------------------------------------------------------------

    def arm(self) -> None:
        """From now on, the next point kills."""
        following = [p for kill in self._left[len(self.fired) :][:1] for p in kill.split("|")]
        specs = [p.removeprefix("*") if p.startswith("*") else f"{p}@{self.task_id}" for p in following]
        self.runner.kill_file.write_text(" ".join(specs))

    async def all_fired(self, within_s: float = 60) -> None:
        """Wait until every point has killed."""

        async def fired() -> bool:
            return len(self.fired) == len(self._left)

        await eventually(fired, within_s=within_s)

    async def submit(self, record: Mapping[str, Any], definition: str = "order", known: Registry | None = None) -> None:
        """Submit, as somebody who stays alive."""
        self.definition = definition
        assert (await self.testbed.submit(dict(record), self.task_id, definition, known)).verdict == "accepted"

    async def beside(self, record: Mapping[str, Any], definition: str = "order") -> str:
        """Submit another task, which is audited as well; its id."""
        self._beside += 1
        task_id = f"{self.task_id}-{self._beside}"
        assert (await self.testbed.submit(dict(record), task_id, definition)).verdict == "accepted"
        return task_id

    async def submit_by_process(
        self, record: Json, *, expected: str = "Accepted", again: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Submit in a process of its own; if it dies, again, at once or after `again`."""
        submission = Submission(task_id=self.task_id, definition="order", record=record)
        message = submission.model_dump_json()
        if again is not None:
            await (await self.testbed.process(SUBMIT=message)).ended()
            await again()
        said = await self.process_until_it_ends(SUBMIT=message)
        assert f"{expected}(task_id='{self.task_id}'" in said, said
        is_new = "new=True" in said.rpartition(f"task_id='{self.task_id}'")[2]
        self.testbed.note(
            submission,
            Accepted(self.task_id, "order", is_new) if expected == "Accepted" else DeadLettered(self.task_id, ""),
        )

    async def process_until_it_ends(self, **environment: str) -> str:
        """Run a process until one of its kind is not killed; the log of that kind."""
        while True:
            before, child = len(self.fired), await self.testbed.process(**environment)
            if await child.ended() == 0:
                return child.log_tail()
            await eventually(partial(self._has_fired, before))

    async def _has_fired(self, before: int) -> bool:
        return len(self.fired) > before

    async def ask_undo(self) -> None:
        """Ask for undo, as an operator does."""
        assert (await self.testbed.compensate(self.task_id)).verdict in ("accepted", "already")

    async def signal(self) -> None:
        """Ask for undo by a signal, which the worker has to take to the store."""
        await self.testbed.client.start_workflow(
            "CompensationRequest",
            id=undo_request_id(self.definition, self.task_id),
            task_queue="scheduler",
            start_signal="compensate",
            start_signal_args=["a test asks for it"],
        )

    async def reached(self, state: TaskState) -> None:
        """Wait until the task is in this state."""

        async def there() -> bool:
            return (await self.page()).task.state is state

        await eventually(there, within_s=100)

    async def page(self) -> TaskPage:
        """Everything on record about the task."""
        return await self.testbed.reads.page(self.task_id)

    async def called(self, service: str, *, undo: bool = False) -> None:
        """Wait until a service has received a call."""
        await self.testbed.simulators.called(service, self.task_id, undo=undo)

    async def work_as(self, *roles: str) -> None:
        """Let the worker end, and one with these roles follow it."""
        self.testbed.give_roles(*roles)
        await self.worker.terminate()

    async def cancel_run(self) -> None:
        """Cancel the run that holds the task, in Temporal."""
        if locked_by := (await self.page()).task.locked_by:
            with suppress(RPCError):
                await self.testbed.client.get_workflow_handle(locked_by).cancel()

    async def forget_schedule(self) -> None:
        """Delete the Supervisor's Schedule."""
        await self.testbed.client.get_schedule_handle(SCHEDULE_ID).delete()

    async def lose_record(self) -> tuple[Any, ...]:
        """Let the business record of the task be gone; what it was."""
        orders = self.testbed.postgres.part.dsn("orders")
        async with await psycopg.AsyncConnection.connect(orders) as connection:
            found = await connection.execute(
                "DELETE FROM business_record WHERE task_id = %s RETURNING business_record::text", (self.task_id,)
            )
            record = await found.fetchone()
        assert record is not None
        return record

    async def put_back(self, record: tuple[Any, ...]) -> None:
        """Put a business record back that was lost."""
        orders = self.testbed.postgres.part.dsn("orders")
        async with await psycopg.AsyncConnection.connect(orders) as connection:
            await connection.execute("INSERT INTO business_record SELECT (%s::business_record).*", record)

    def fault(self, service: str, kind: str, *, match: Mapping[str, Any] | None = None, **rule: Any) -> None:
        """Make a service fail for this task."""
        self.testbed.simulators.fault(service, kind, match={"task_id": self.task_id, **(match or {})}, **rule)

    def heal(self) -> None:
        """No service fails any more."""
        self.testbed.simulators.heal()

    def undo_calls(self, step: str) -> int:
        """Calls of one attempt to undo a step."""
        definition = registry().newest(self.definition)
        undo = definition.step(step).undo if definition else None
        return undo.calls if undo else 0
