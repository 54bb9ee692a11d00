"""What submitters, customers and operators do in a run with faults: drawn once from a seed, carried out at a rate.

A submitter goes by what it is told: refused, it comes again when it was told to; without an answer, it asks again. What
it was told is kept, and is part of the checker's evidence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, count, islice, takewhile
from random import Random
from typing import Literal

from temporalio.service import RPCError

from audit.evidence import SubmissionReply
from chaos.testbed import ChaosTestbed, reply_of
from domain.faults import Unreachable, UsageError
from domain.ids import attempt_id, undo_request_id
from domain.messages import Json
from domain.states import TaskState
from domain.undo_requests import UndoRequest
from runtime.wiring import Stores, caps
from store.admission import Admission, CapReached
from store.database import Database
from store.orders import Amendment, Orders
from store.snapshot import Snapshot
from store.state_store import StateStore
from store.submission import Accepted, DeadLettered, Submission, SubmissionOutcome
from testing.records import MACHINE, ORDER

Way = Literal["", "store", "signal", "attempt"]
_AGAIN_S = 0.5


@dataclass(frozen=True)
class Plan:
    """What will be done about one task.

    Attributes:
        kind: In a word, for the figures. undo: How its undo is asked for, `undo_after_s` after it was accepted.
        twice: It is submitted once more. contradicts: And then with another content.
        corrected: Once in Error, an operator corrects the address and resubmits it.
    """

    task_id: str
    kind: str
    definition: str
    record: Json
    undo: Way = ""
    undo_after_s: float = 0.0
    twice: bool = False
    contradicts: bool = False
    corrected: bool = False


def make_plans(random: Random) -> Iterator[Plan]:
    """Plans without end. Three in five go well if nothing else happens; others are refused, undone, or corrected."""
    kinds = {
        "order": 47,
        "machine": 14,
        "undone_order": 12,
        "undone_machine": 4,
        "declined": 7,
        "out_of_stock": 4,
        "unknown_address": 3,
        "corrected": 4,
        "name_taken": 3,
    }
    for number in count():
        (kind,) = random.choices(list(kinds), list(kinds.values()))
        is_machine = kind in ("machine", "undone_machine", "name_taken")
        yield Plan(
            task_id=f"c-{number:05d}-{kind}",
            kind=kind,
            definition="provisioning" if is_machine else "order",
            record=_machine(kind, number) if is_machine else _order(kind, random),
            undo=random.choice(("store", "signal", "attempt")) if kind.startswith("undone") else "",
            undo_after_s=random.uniform(0, 6),
            twice=random.random() < 0.12,
            contradicts=number % 25 == 0,
            corrected=kind == "corrected",
        )


def _order(kind: str, random: Random) -> Json:
    record = deepcopy(ORDER)
    line = record["lines"][0]
    line["quantity"], line["unit_price_minor"] = random.randint(1, 60), random.randint(1, 9_999)
    if kind == "declined":
        record["card_token"] = "tok_declined"
    if kind == "out_of_stock":
        line["sku"] = "OUT-1"
    if kind in ("unknown_address", "corrected"):
        record["address"]["line1"] = "Unknown"
    return record


def _machine(kind: str, number: int) -> Json:
    return {**MACHINE, "name": "taken.example" if kind == "name_taken" else f"vm-{number}.example"}


@asynccontextmanager
async def stores_through_proxies(testbed: ChaosTestbed) -> AsyncIterator[Stores]:
    """Both databases, as a submitter reaches them: `open_stores` would wait for a proxy of this very event loop."""
    dsn, orders_dsn = (x.get_secret_value() for x in (testbed.settings.database_url, testbed.settings.orders_url))
    async with (
        Database(dsn, name="state store", size=6) as state,
        Database(orders_dsn, name="orders database", size=6) as orders,
    ):
        admission = Admission(state, caps(testbed.settings))
        yield replace(testbed.stores, store=StateStore(state), orders=Orders(orders), admission=admission)


class Traffic:
    """Carries plans out, through the lines that the faults are on.

    Attributes:
        plans: Of all that have come. answers: All that submitters were told. corrected: Tasks that were resubmitted.
        asked: Tasks whose undo the store has accepted, or whose request Temporal has taken, and which way that was.
    """

    def __init__(self, testbed: ChaosTestbed, stores: Stores, plans: Iterator[Plan], random: Random) -> None:
        self.testbed, self._stores, self._coming, self._random = testbed, stores, plans, random
        self.plans: list[Plan] = []
        self.answers: list[SubmissionReply] = []
        self.asked: dict[str, Way] = {}
        self.corrected: set[str] = set()
        self.taken = 0

    async def run(self, least: int, faults: asyncio.Task[None], per_s: float, at_once: int) -> None:
        """Let tasks arrive at random, so many a second on the average; ends when everybody has what they wanted.

        `least` tasks come, and more as long as `faults` strike: each has something to hurt. `at_once`: so many want
        something at a time, at most; who comes then has to wait. In the middle as many come together, so that caps
        are reached also by a machine that is quick.
        """
        middle = least // 2
        more = takewhile(lambda _: not faults.done(), self._coming)
        room = asyncio.Semaphore(at_once)

        async def one(plan: Plan) -> None:
            async with room:
                await self._carry_out(plan)

        async with asyncio.TaskGroup() as group:
            for number, plan in enumerate(chain(islice(self._coming, least), more)):
                self.plans.append(plan)
                async with room:
                    group.create_task(one(plan))
                if not middle <= number < middle + at_once:
                    await asyncio.sleep(self._random.expovariate(per_s))

    async def _carry_out(self, plan: Plan) -> None:
        await self._submit(plan, plan.record)
        self.taken += 1
        async with asyncio.TaskGroup() as group:
            if plan.undo:
                group.create_task(self._ask_later(plan))
            if plan.corrected:
                group.create_task(self._correct(plan))
            if plan.twice:
                await asyncio.sleep(self._random.uniform(0, 4))
                await self._submit(plan, plan.record)
            if plan.contradicts:
                other = {"currency": "CHF"} if plan.definition == "order" else {"region": "elsewhere"}
                await self._submit(plan, plan.record | other)

    # --- submitters -------------------------------------------------------------------------------------------

    async def _submit(self, plan: Plan, record: Json) -> None:
        """Submit until there is an answer that is not `later`."""
        message = Submission(task_id=plan.task_id, definition=plan.definition, record=record, submitter="shop")
        while True:
            said = await self._once(message)
            self.answers.append(reply_of(message, said))
            match said:
                case Accepted() | DeadLettered():
                    return
                case CapReached(retry_after=pause):
                    await asyncio.sleep(pause.total_seconds() * self._random.uniform(1, 1.5))
                case None:
                    await asyncio.sleep(_AGAIN_S)

    async def _once(self, message: Submission) -> SubmissionOutcome | None:
        """Submit once; None: there was no answer."""
        with suppress(Unreachable, UsageError):
            return await self._stores.desk.submit(message)
        return None

    # --- customers and operators ------------------------------------------------------------------------------

    async def _ask_later(self, plan: Plan) -> None:
        await asyncio.sleep(plan.undo_after_s)
        await self._ask(plan, plan.undo)

    async def _ask(self, plan: Plan, way: Way) -> None:
        """Ask for undo until somebody has taken the request."""
        while True:
            try:
                match way:
                    case "store":
                        request = UndoRequest(task_id=plan.task_id, requester="customer", reason="changed my mind")
                        verdict = await self._stores.store.requests.undo(request)
                        if verdict.verdict in ("accepted", "already"):
                            self.asked[plan.task_id] = "store"
                    case "attempt":
                        self.asked[plan.task_id] = await self._signal_attempt(plan)
                    case _:
                        await self._signal(plan)
                        self.asked[plan.task_id] = "signal"
                return
            except (Unreachable, RPCError):
                await asyncio.sleep(_AGAIN_S)

    async def _signal_attempt(self, plan: Plan) -> Way:
        """Signal the attempt that runs; if there is none, whoever takes the request in every state. Which it was."""
        task = await self._stores.store.tasks.find(plan.task_id)
        epoch = task.epoch if task else 1
        handle = self.testbed.client.get_workflow_handle(attempt_id(plan.definition, plan.task_id, epoch))
        try:
            await handle.signal("compensate", {"requester": "customer", "reason": "changed my mind"})
        except RPCError:
            await self._signal(plan)
            return "signal"
        return "attempt"

    async def _signal(self, plan: Plan) -> None:
        await self.testbed.client.start_workflow(
            "CompensationRequest",
            id=undo_request_id(plan.definition, plan.task_id),
            task_queue="scheduler",
            start_signal="compensate",
            start_signal_args=[{"requester": "customer", "reason": "changed my mind"}],
        )

    async def _correct(self, plan: Plan) -> None:
        """Correct the address of a task in Error, and resubmit it."""
        while (task := await self._snapshot(plan)) is None or not task.state.is_settled:  # noqa: ASYNC110 (the store's)
            await asyncio.sleep(1)
        record = {**plan.record, "address": ORDER["address"]}
        while task.state is TaskState.ERROR and plan.task_id not in self.corrected:
            try:
                found = (await self._stores.orders.load([plan.task_id]))[plan.task_id]
                await self._stores.orders.amend(Amendment(plan.task_id, record, found.amendments))
                moved, _ = await self._stores.store.requests.resubmit(
                    plan.task_id,
                    requester="cli:operator",
                    reason="the customer gave another address",
                    changes={"address": {"from": plan.record["address"], "to": record["address"]}},
                )
                if not moved:
                    return
                self.corrected.add(plan.task_id)
            except Unreachable:
                await asyncio.sleep(_AGAIN_S)

    async def _snapshot(self, plan: Plan) -> Snapshot | None:
        with suppress(Unreachable):
            return await self._stores.store.tasks.find(plan.task_id)
        return None
