"""Faults of the remote services, and what people do to runs in Temporal. Each says how often something was seen."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httpx
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from chaos.fault_context import PATIENCE_S, FaultContext
from devstack.stack.environment import SERVICES
from domain.messages import Json
from supervisor.schedule import SCHEDULE_ID
from testing.runs import reset

_STALL_S = 20
"""Long enough for an undo to be claimed, behind all that waits, and to reach the service first."""


class Services:
    """Rules by which the services fail."""

    def __init__(self, context: FaultContext) -> None:
        self._context, self._stalls = context, 0

    async def crash(self) -> int:
        """A service commits an effect and dies. Seen: it died."""
        services = self._context.testbed.services

        async def died() -> bool:
            return not services.part.is_alive()

        async with self._context.locks[services.part.name]:
            await self._add_rule(await self._wanted(), "crash", times=1)
            seen = await self._context.until(died, PATIENCE_S)
            await services.restart()
            return int(seen)

    async def slow(self) -> int:
        return await self.rule("latency", latency_ms=self._context.random.randint(200, 4_000))

    async def error(self, *, after_effect: bool) -> int:
        return await self.rule("error", status=self._context.random.choice((500, 502, 503)), after_effect=after_effect)

    async def rule(self, kind: str, **rule: Any) -> int:
        """Let the next few calls of a service fail. Seen: how many did, unless it died meanwhile and forgot."""
        service, fired = await self._wanted(), 0
        times = self._context.random.randint(1, 5)
        number = await self._add_rule(service, kind, times=times, for_s=PATIENCE_S, **rule)

        async def used_up() -> bool:
            nonlocal fired
            fired = await self._fired(service, number)
            return fired == times

        await self._context.until(used_up, PATIENCE_S, look_s=0.5)
        return fired

    async def stall(self) -> int:
        """A charge is on its way when its order is undone. Seen: it arrived after its undo, and was refused.

        Every second time the service keeps no fence, so that only the tombstone keeps it out.
        """
        self._stalls += 1
        if self._stalls % 2 == 0:
            await self._add_rule("payments", "unfenced", times=1, for_s=PATIENCE_S, match={"undo": False})
        rule = {"latency_ms": 1000 * _STALL_S, "times": 1, "for_s": PATIENCE_S, "match": {"undo": False}}
        number, task_id = await self._add_rule("payments", "latency", **rule), ""

        async def on_its_way() -> bool:
            nonlocal task_id
            task_id = (await self._rule("payments", number)).get("last_task") or ""
            return bool(task_id)

        if not await self._context.until(on_its_way, PATIENCE_S, look_s=0.2):
            return 0
        await self._context.testbed.compensate(task_id)

        async def refused() -> bool:
            ledger = await asyncio.to_thread(self._context.testbed.simulators.ledger, "payments", task_id)
            return any(c["outcome"] in ("stale_token", "undone") for c in ledger["refusals"])

        return int(await self._context.until(refused, _STALL_S + PATIENCE_S, look_s=0.5))

    async def _wanted(self) -> str:
        """A service that some task has still to be done by."""
        rows = await self._context.rows(
            "SELECT s.service FROM task AS t INNER JOIN step AS s USING (task_id)"
            " WHERE t.state IN ('Pending', 'Processing') AND s.state IN ('NotStarted', 'Running')"
        )
        return str(self._context.random.choice([r["service"] for r in rows] or SERVICES))

    async def _add_rule(self, service: str, kind: str, **rule: Any) -> int:
        async with httpx.AsyncClient(base_url=self._context.testbed.simulators.url, timeout=5) as client:
            answer = await client.post(f"/control/{service}/faults", json={"kind": kind, **rule})
            return int(answer.raise_for_status().json()["id"])

    async def _fired(self, service: str, number: int) -> int:
        return int((await self._rule(service, number)).get("fired", 0))

    async def _rule(self, service: str, number: int) -> Json:
        """What a service says of a rule; nothing, if it died meanwhile and forgot."""
        async with httpx.AsyncClient(base_url=self._context.testbed.simulators.url, timeout=5) as client:
            rules = (await client.get(f"/control/{service}/faults")).raise_for_status().json()
        return next((r for r in rules if r["id"] == number), {})


class Runs:
    """What people do in the Temporal UI."""

    def __init__(self, context: FaultContext) -> None:
        self._context = context

    async def terminate(self) -> int:
        """Seen: Temporal did it."""
        if (run := await self._at_work()) is None:
            return 0
        await run.terminate(reason="chaos")
        return 1

    async def cancel(self) -> int:
        """Seen: it ended as cancelled, so that its worker has heard of it."""
        if (run := await self._at_work()) is None:
            return 0
        await run.cancel()

        async def ended() -> bool:
            return (await run.describe()).status is WorkflowExecutionStatus.CANCELED

        return int(await self._context.until(ended, PATIENCE_S, look_s=0.5))

    async def reset(self) -> int:
        """Reset an attempt, at work or over. Seen: there is another run of it."""
        rows = await self._context.rows(
            "SELECT definition || '/' || task_id || '/' || epoch AS run FROM task"
            " WHERE run_id IS NOT NULL OR (epoch > 0 AND locked_by IS NULL) ORDER BY updated_at DESC LIMIT 50"
        )
        if not rows:
            return 0
        run = self._context.random.choice(rows)["run"]
        await reset(self._context.testbed.client, run, request_id=run)
        return 1

    async def _at_work(self) -> WorkflowHandle[Any, Any] | None:
        """An attempt that is at work."""
        rows = await self._context.rows("SELECT locked_by FROM task WHERE run_id IS NOT NULL ORDER BY task_id")
        run = self._context.random.choice(rows)["locked_by"] if rows else None
        return self._context.testbed.client.get_workflow_handle(run) if run else None

    async def delete_schedule(self) -> int:
        """Seen: it was there, and the workers' watch made it again."""
        handle = self._context.testbed.client.get_schedule_handle(SCHEDULE_ID)

        async def there() -> bool:
            with suppress(RPCError):
                await handle.describe()
                return True
            return False

        async with self._context.locks["schedule"]:
            await handle.delete()
            return int(await self._context.until(there, 20))
