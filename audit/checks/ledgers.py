"""What only the services' own ledgers can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from audit.task import AuditedTask
from domain.messages import Json
from domain.states import EventKind, TaskState, UndoState


def effect_is_there_at_most_once(task: AuditedTask) -> Iterator[str]:
    """Each effect at most once: one live effect per task and step, over all generations of its key."""
    live = Counter(e.step for e in task.effects if e.is_live)
    yield from (f"step {step} has {n} live effects" for step, n in sorted(live.items()) if n > 1)


def processed_has_every_effect(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Processed means that every step's effect is there, at the services that were asked."""
    if task.row.state is TaskState.PROCESSED and task.definition is not None:
        live = {e.step for e in task.effects if e.is_live}
        asked = [s.name for s in task.steps if task.definition.service(s.name) in task.ledgers]
        yield from (f"it is Processed, step {step} has no live effect" for step in asked if step not in live)


def compensated_has_no_effect(task: AuditedTask) -> Iterator[str]:
    """All or nothing: Compensated means that no effect is there, but of steps without undo, or closed by hand."""
    if task.row.state is TaskState.COMPENSATED:
        live = [e for e in task.effects if e.is_live and task.has_undo(e.step) and not task.is_closed_by_hand(e.step)]
        yield from (f"it is Compensated, effect {e.key} stands" for e in live)


def calls_stay_within_what_was_granted(task: AuditedTask) -> Iterator[str]:
    """Calls to a remote service for a step, and questions about it, never exceed what was granted."""
    calls = Counter((c.step, c.undo) for c in (*task.calls, *task.probes) if not c.duplicate)
    for step in task.steps:
        for word, undo, granted, left in (
            ("calls", False, step.budget, step.budget_left),
            ("undo calls", True, step.undo_budget, step.undo_budget_left),
        ):
            if (n := calls[step.name, undo]) > granted - left:
                yield f"step {step.name}: {n} {word} received, {granted - left} of {granted} were granted"


def no_effect_after_its_undo(task: AuditedTask) -> Iterator[str]:
    """All or nothing: no effect was made after the tombstone or the undo of its key."""
    barred = {t.key for t in task.tombstones}
    undone = {c.step for c in task.calls if c.undo and c.outcome == "executed"}
    for effect in task.effects:
        if effect.key in barred:
            yield f"effect {effect.key} is there beside its tombstone"
        elif effect.is_live and effect.step in undone:
            yield f"effect {effect.key} stands, although the undo of step {effect.step} was carried out"
        elif effect.undone_at is not None and effect.undone_at < effect.created_at:
            yield f"effect {effect.key} was made after its undo"


def tokens_never_fall(task: AuditedTask) -> Iterator[str]:
    """Fenced: the tokens that a service accepted for a task never fall, and each is an attempt's."""
    for service, ledger in sorted(task.ledgers.items()):
        accepted = sorted([*ledger.effects, *ledger.tombstones], key=lambda e: e.created_at)
        for one, other in pairwise(accepted):
            if other.token < one.token:
                yield f"{service} accepted {other.key} with token {other.token} after {one.key} with {one.token}"
        for effect in accepted:
            if not 0 < effect.token <= task.row.epoch:
                yield f"{service} accepted {effect.key} with token {effect.token}; epochs are 1..{task.row.epoch}"


def ledgers_show_undo_in_reverse(task: AuditedTask) -> Iterator[str]:
    """Undo runs in the reverse order of beginning, by the services' own clocks too."""
    undone = {
        entry.step: min(times)
        for entry in sorted(task.undo_log, key=lambda e: e.seq, reverse=True)
        if entry.state is UndoState.UNDONE and (times := _undone_at(task, entry.step))
    }
    for (later, at), (earlier, before) in pairwise(undone.items()):
        if before < at:
            yield f"{earlier} was undone at its service before {later}, which began later"


def money_adds_up(task: AuditedTask) -> Iterator[str]:
    """All or nothing, in money: what was taken and not given back is all that its undo would give back, or nothing."""
    state = task.row.state
    if state not in (TaskState.PROCESSED, TaskState.COMPENSATED):
        return
    kept, due = Counter[str](), Counter[str]()
    for effect in task.effects:
        if effect.is_live and not task.is_closed_by_hand(effect.step):
            kept += _money(effect.body)
    for entry in task.undo_log if state is TaskState.PROCESSED else ():
        due += _money(entry.request)
    if kept != due:
        yield f"it is {state}: {dict(kept)} was taken and not given back, due is {dict(due)}"


def calls_are_made_in_their_time(task: AuditedTask) -> Iterator[str]:
    """No call is sent with its time up: no service carried one out before its attempt had begun the step or after the
    deadline, and none was told of more time than was left."""
    early, late = task.tolerances.clock_skew, task.tolerances.network_delay
    begun_at = _begun_at(task)
    for call in task.calls:
        within = task.complete_within(call.step)
        if call.outcome != "executed" or call.received_at is None or within is None:
            continue
        at = begun_at.get((call.step, call.undo, call.token or 0))
        if at is None or call.received_at < at - early:
            yield f"call {call.key} was carried out for attempt {call.token}, which had not begun the step"
            continue
        left, told = at + within - call.received_at, timedelta(milliseconds=call.time_left_ms or 0)
        if -left > late:
            yield f"call {call.key} was carried out {-left.total_seconds():.1f} s after its deadline"
        elif told - left > late:
            yield f"call {call.key} was told of {told.total_seconds():.1f} s, and had {left.total_seconds():.1f} s left"


def no_call_was_sent_with_its_time_up(task: AuditedTask) -> Iterator[str]:
    """No call is sent with its time up: each said that it had time left."""
    late = [c for c in task.calls if c.time_left_ms is not None and c.time_left_ms <= 0]
    yield from (f"call {c.key} was sent with {c.time_left_ms} ms left" for c in late)


def no_call_has_more_time_than_its_step(task: AuditedTask) -> Iterator[str]:
    """No call is sent with its time up: none said that it had more time than its step may take."""
    for call in task.calls:
        within = task.complete_within(call.step)
        if within is not None and timedelta(milliseconds=call.time_left_ms or 0) > within:
            yield f"call {call.key} was sent with {call.time_left_ms} ms left, its step may take {within}"


def _begun_at(task: AuditedTask) -> dict[tuple[str, bool, int], datetime]:
    """When each attempt first began each step, or its undo."""
    found: dict[tuple[str, bool, int], datetime] = {}
    for event in task.events:
        if step := event.detail.get("began"):
            found.setdefault((step, event.kind is EventKind.UNDO_ADVANCED, event.epoch), event.at)
    return found


def _undone_at(task: AuditedTask, step: str) -> list[datetime]:
    return [e.undone_at for e in (*task.effects, *task.tombstones) if e.step == step and e.undone_at is not None]


def _money(body: Json | None) -> Counter[str]:
    """The amount in a request, by currency; nothing if it is not about money."""
    amount = (body or {}).get("amount_minor")
    return Counter({str((body or {}).get("currency")): amount} if isinstance(amount, int) else {})
