"""People who resubmit, for the tests beside it."""

from __future__ import annotations

from typing import Any

from definitions import registry
from operators.resubmit import Plan, Resubmission, carry_out, prepare
from runtime.wiring import Stores
from store.orders import Orders
from store.reads import Reads
from tests.integration.store_bench import StoreBench


async def resubmit(store: StoreBench, task_id: str) -> bool:
    """A person resubmits."""
    moved, _ = await store.store.requests.resubmit(task_id, requester="anna", reason="corrected", changes={"a": [1, 2]})
    return moved


class People:
    """Who resubmits one task, as the command does: each looks first, and asks then."""

    def __init__(self, store: StoreBench, reads: Reads, task_id: str) -> None:
        self._store, self._reads, self._task_id = store, reads, task_id

    def correction(self, by: str, line1: str | None) -> Resubmission:
        """With a corrected address, or as it is."""
        changes = [f"address.line1={line1}"] if line1 else []
        return Resubmission(self._task_id, f"cli:{by}", "the customer called", changes)

    async def look(self, asked: Resubmission) -> Plan:
        """What somebody sees who asks for this."""
        return await prepare(self._stores(), self._reads, asked)

    async def ask(self, asked: Resubmission, plan: Plan, orders: Orders | None = None) -> None:
        """Go through with it, on what was seen then."""
        await carry_out(self._stores(orders), self._reads, asked, plan)

    def _stores(self, orders: Orders | None = None) -> Stores:
        store = self._store
        return Stores(store.store, orders or store.orders, store.admission, store.breakers, registry())


def line1(store: StoreBench) -> str:
    """The street in the one business record there is."""
    (row,) = store.orders_owner("SELECT record FROM business_record")
    return str(row["record"]["address"]["line1"])


def corrections(store: StoreBench) -> list[Any]:
    """What the events say of who corrected what."""
    rows = store.owner("SELECT actor, detail FROM event WHERE kind = 'resubmitted' ORDER BY number")
    return [(r["actor"], {path: change["to"] for path, change in r["detail"]["changes"].items()}) for r in rows]
