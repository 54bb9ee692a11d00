"""Situations that a task gets into in the state store: refused, being undone, overdue."""

from __future__ import annotations

from datetime import timedelta

from domain.attempts import AttemptEnd
from domain.undo_requests import UndoRequest
from store.claims import Hold
from store.supervision import ExpiredTask
from supervisor.decide import decide
from tests.integration.store_bench import StoreBench, undo

REFUSED = {"step": "stock", "code": "sold_out", "message": "there is none"}
AT_ONCE = timedelta(0)
WINDOW = timedelta(days=7)


def asked(task_id: str, holder: str | None = None) -> UndoRequest:
    """A person asks for undo."""
    return UndoRequest(task_id=task_id, requester="anna", reason="by mistake", holder=holder)


async def in_error(store: StoreBench, task_id: str, *, unknown: bool = False) -> Hold:
    """A task in Error, because its first step was refused for good."""
    hold = await store.begun(task_id)
    await store.store.forward.fail(hold, "stock", REFUSED, unknown=unknown, then="error")
    return hold


async def undoing(store: StoreBench, task_id: str, upto: str = "charge") -> Hold:
    """A task whose steps up to `upto` were begun, and whose undo was claimed; no undo has begun."""
    await store.begun(task_id, step=upto)
    await store.store.requests.undo(asked(task_id))
    return await store.claim(task_id)


async def undo_begun(store: StoreBench, task_id: str) -> Hold:
    """A task whose undo is at work: that of the step that began last has begun."""
    hold = await undoing(store, task_id)
    assert (await store.store.undo.advance(hold, begin=undo("charge"))).grant is not None
    return hold


async def undo_failed(store: StoreBench, task_id: str) -> Hold:
    """A task in CompensationFailed: the undo of the step that began last was refused for good."""
    hold = await undo_begun(store, task_id)
    report = await store.store.undo.fail(hold, "charge", {"step": "charge", "message": "never"})
    assert report.end is AttemptEnd.UNDO_FAILED
    return hold


async def refund_refused(store: StoreBench, task_id: str) -> Hold:
    """An order whose shipment is undone, whose refund was refused for good, and whose stock was not tried."""
    hold = await undoing(store, task_id, "ship")
    await store.store.undo.advance(hold, begin=undo("ship"))
    await store.store.undo.advance(hold, done="ship", calls=1, begin=undo("charge"))
    await store.store.undo.fail(hold, "charge", REFUSED)
    return hold


async def expired(store: StoreBench, task_id: str) -> ExpiredTask:
    """The task as the Supervisor reads it, once its deadline is over."""
    store.expire(task_id)
    page = await store.supervision.expired(window=WINDOW, page=100, after=(None, ""))
    return next(t for t in page if t.task_id == task_id)


async def recovered(store: StoreBench, task_id: str) -> None:
    """Let a held task expire, and be recovered as the Supervisor decides."""
    assert await store.supervision.recover([decide(await expired(store, task_id))]) != []
