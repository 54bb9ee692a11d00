"""Invariants that only the services' own ledgers can witness. Without ledgers these say nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from audit.evidence import Call, Effect
from audit.task_record import Picture
from domain.messages import Json
from domain.states import EventKind, TaskState, UndoState


def effect_is_there_at_most_once(picture: Picture) -> Iterator[str]:
    """One live effect per task and step, over all generations of its key."""
    live = Counter(e.step for e in _effects(picture) if e.is_live)
    yield from (f"step {step} has {n} live effects" for step, n in sorted(live.items()) if n > 1)


def processed_has_every_effect(picture: Picture) -> Iterator[str]:
    """Processed: every step's effect stands, at the services that were asked."""
    if picture.task.state is not TaskState.PROCESSED or picture.ledgers is None or picture.definition is None:
        return
    live = {e.step for e in _effects(picture) if e.is_live}
    asked = [s.name for s in picture.steps if picture.definition.service(s.name) in picture.ledgers]
    yield from (f"it is Processed, step {step} has no live effect" for step in asked if step not in live)


def compensated_has_no_effect(picture: Picture) -> Iterator[str]:
    """Compensated: no effect stands but of steps that have no undo, or were closed by hand."""
    if picture.task.state is TaskState.COMPENSATED:
        live = [e for e in _effects(picture) if e.is_live and picture.undoable(e.step)]
        live = [e for e in live if not picture.is_closed_by_hand(e.step)]
        yield from (f"it is Compensated, effect {e.key} stands" for e in live)


def calls_stay_within_what_was_granted(picture: Picture) -> Iterator[str]:
    """A service received no more calls and questions of a step than were granted."""
    calls = Counter((c.step, c.undo) for c in (*_calls(picture), *_probes(picture)) if not c.duplicate)
    for step in picture.steps:
        for word, undo, granted, left in (
            ("calls", False, step.budget, step.budget_left),
            ("undo calls", True, step.undo_budget, step.undo_budget_left),
        ):
            if (n := calls[step.name, undo]) > granted - left:
                yield f"step {step.name}: {n} {word} received, {granted - left} of {granted} were granted"


def no_effect_after_its_undo(picture: Picture) -> Iterator[str]:
    """No effect was made after the tombstone or the undo of its key."""
    barred = {t.key for ledger in (picture.ledgers or {}).values() for t in ledger.tombstones}
    undone = {c.step for c in _calls(picture) if c.undo and c.outcome == "executed"}
    for effect in _effects(picture):
        if effect.key in barred:
            yield f"effect {effect.key} is there beside its tombstone"
        elif effect.is_live and effect.step in undone:
            yield f"effect {effect.key} stands, although the undo of step {effect.step} was carried out"
        elif effect.undone_at is not None and effect.undone_at < effect.created_at:
            yield f"effect {effect.key} was made after its undo"


def tokens_never_fall(picture: Picture) -> Iterator[str]:
    """The fencing tokens that a service accepted for a task never fall, and none is of no attempt."""
    for service, ledger in sorted((picture.ledgers or {}).items()):
        accepted = sorted([*ledger.effects, *ledger.tombstones], key=lambda e: e.created_at)
        for one, other in pairwise(accepted):
            if other.token < one.token:
                yield f"{service} accepted {other.key} with token {other.token} after {one.key} with {one.token}"
        for effect in accepted:
            if not 0 < effect.token <= picture.task.epoch:
                yield f"{service} accepted {effect.key} with token {effect.token}; epochs are 1..{picture.task.epoch}"


def ledgers_show_undo_in_reverse(picture: Picture) -> Iterator[str]:
    """By the services' own clocks too, what began last was undone first."""
    undone = {
        entry.step: min(times)
        for entry in sorted(picture.undo_log, key=lambda e: e.seq, reverse=True)
        if entry.state is UndoState.UNDONE and (times := _undone_at(picture, entry.step))
    }
    for (later, at), (earlier, before) in pairwise(undone.items()):
        if before < at:
            yield f"{earlier} was undone at its service before {later}, which began later"


def money_adds_up(picture: Picture) -> Iterator[str]:
    """What was taken and not given back is all that its undo would give back, or nothing."""
    state = picture.task.state
    if state not in (TaskState.PROCESSED, TaskState.COMPENSATED):
        return
    kept, due = Counter[str](), Counter[str]()
    for effect in _effects(picture):
        if effect.is_live and not picture.is_closed_by_hand(effect.step):
            kept += _money(effect.body)
    for entry in picture.undo_log if state is TaskState.PROCESSED else ():
        due += _money(entry.request)
    if kept != due:
        yield f"it is {state}: {dict(kept)} was taken and not given back, due is {dict(due)}"


def calls_are_made_in_their_time(picture: Picture) -> Iterator[str]:
    """No service carried a call out before its attempt had begun the step, or after its deadline; and none was told of
    more time than that leaves."""
    early, bound = picture.terms.clocks_differ, picture.terms.network_bound
    begun = _begun(picture)
    for call in _calls(picture):
        within = picture.definition.within(call.step) if picture.definition else None
        if call.outcome != "executed" or call.received_at is None or within is None:
            continue
        at = begun.get((call.step, call.undo, call.token or 0))
        if at is None or call.received_at < at - early:
            yield f"call {call.key} was carried out for attempt {call.token}, which had not begun the step"
        elif call.received_at > at + within + bound:
            late = call.received_at - at - within
            yield f"call {call.key} was carried out {late.total_seconds():.1f} s after its deadline"
        elif call.received_at + (told := timedelta(milliseconds=call.time_left_ms or 0)) > at + within + bound:
            left = at + within - call.received_at
            yield f"call {call.key} was told of {told.total_seconds():.1f} s, and had {left.total_seconds():.1f} s left"


def no_call_was_sent_with_its_time_up(picture: Picture) -> Iterator[str]:
    """Every call said that it had time left when it was sent."""
    late = [c for c in _calls(picture) if c.time_left_ms is not None and c.time_left_ms <= 0]
    yield from (f"call {c.key} was sent with {c.time_left_ms} ms left" for c in late)


def no_call_has_more_time_than_its_step(picture: Picture) -> Iterator[str]:
    """No call said that it had more time left than its step may take: time is the store's."""
    for call in _calls(picture):
        within = picture.definition.within(call.step) if picture.definition else None
        if within is not None and call.time_left_ms is not None and call.time_left_ms > within.total_seconds() * 1000:
            yield f"call {call.key} was sent with {call.time_left_ms} ms left, its step may take {within}"


def _begun(picture: Picture) -> dict[tuple[str, bool, int], datetime]:
    """When each attempt first began each step, or its undo."""
    found: dict[tuple[str, bool, int], datetime] = {}
    for event in picture.events:
        if step := event.detail.get("began"):
            found.setdefault((step, event.kind is EventKind.UNDO_ADVANCED, event.epoch), event.at)
    return found


def _undone_at(picture: Picture, step: str) -> list[datetime]:
    tombstones = [t for ledger in (picture.ledgers or {}).values() for t in ledger.tombstones]
    return [e.undone_at for e in (*_effects(picture), *tombstones) if e.step == step and e.undone_at is not None]


def _money(body: Json | None) -> Counter[str]:
    """The amount in a request, by currency; nothing if it is not about money."""
    amount = (body or {}).get("amount_minor")
    return Counter({str((body or {}).get("currency")): amount} if isinstance(amount, int) else {})


def _effects(picture: Picture) -> list[Effect]:
    return [e for ledger in (picture.ledgers or {}).values() for e in ledger.effects]


def _calls(picture: Picture) -> list[Call]:
    return [c for ledger in (picture.ledgers or {}).values() for c in ledger.calls]


def _probes(picture: Picture) -> list[Call]:
    return [c for ledger in (picture.ledgers or {}).values() for c in ledger.probes]


CHECKS = (
    effect_is_there_at_most_once,
    processed_has_every_effect,
    compensated_has_no_effect,
    calls_stay_within_what_was_granted,
    no_effect_after_its_undo,
    tokens_never_fall,
    ledgers_show_undo_in_reverse,
    money_adds_up,
    calls_are_made_in_their_time,
    no_call_was_sent_with_its_time_up,
    no_call_has_more_time_than_its_step,
)
