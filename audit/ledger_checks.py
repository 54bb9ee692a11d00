"""Invariants that only the services' own ledgers can witness. Without ledgers these say nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from audit.picture import Call, Effect, Picture
from domain.states import TaskState


def effect_is_there_at_most_once(picture: Picture) -> Iterator[str]:
    """One live effect per task and step, over all generations of its key (design 1, failures 2)."""
    live = Counter(e.step for e in _effects(picture) if e.is_live)
    yield from (f"step {step} has {n} live effects" for step, n in sorted(live.items()) if n > 1)


def processed_has_every_effect(picture: Picture) -> Iterator[str]:
    """Processed: every step's effect stands, at the services that were asked (design 2, failures 2, 3)."""
    if picture.task.state is not TaskState.PROCESSED or picture.ledgers is None or picture.definition is None:
        return
    live = {e.step for e in _effects(picture) if e.is_live}
    asked = [s.name for s in picture.steps if picture.definition.service(s.name) in picture.ledgers]
    yield from (f"it is Processed, step {step} has no live effect" for step in asked if step not in live)


def compensated_has_no_effect(picture: Picture) -> Iterator[str]:
    """Compensated: no effect stands but of steps that have no undo (design 2, failures 3)."""
    if picture.task.state is TaskState.COMPENSATED:
        live = [e for e in _effects(picture) if e.is_live and picture.undoable(e.step)]
        yield from (f"it is Compensated, effect {e.key} stands" for e in live)


def calls_stay_within_what_was_granted(picture: Picture) -> Iterator[str]:
    """A service received no more calls of a step than were taken out of its budget (design 5, failures 8)."""
    calls = Counter((c.step, c.undo) for c in _calls(picture) if not c.duplicate)
    for step in picture.steps:
        for word, undo, granted, left in (
            ("calls", False, step.budget, step.budget_left),
            ("undo calls", True, step.undo_budget, step.undo_budget_left),
        ):
            if (n := calls[step.name, undo]) > granted - left:
                yield f"step {step.name}: {n} {word} received, {granted - left} of {granted} were granted"


def no_effect_after_its_undo(picture: Picture) -> Iterator[str]:
    """No effect was made after the tombstone or the undo of its key (design 2, failures 4)."""
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
    """The fencing tokens that a service accepted for a task never fall, and none is of no attempt (failures 7)."""
    for service, ledger in sorted((picture.ledgers or {}).items()):
        accepted = sorted([*ledger.effects, *ledger.tombstones], key=lambda e: e.created_at)
        for one, other in pairwise(accepted):
            if other.token < one.token:
                yield f"{service} accepted {other.key} with token {other.token} after {one.key} with {one.token}"
        for effect in accepted:
            if not 0 < effect.token <= picture.task.epoch:
                yield f"{service} accepted {effect.key} with token {effect.token}; epochs are 1..{picture.task.epoch}"


def no_call_was_sent_with_its_time_up(picture: Picture) -> Iterator[str]:
    """Every call said that it had time left when it was sent (design 8, failures 9)."""
    late = [c for c in _calls(picture) if c.time_left_ms is not None and c.time_left_ms <= 0]
    yield from (f"call {c.key} was sent with {c.time_left_ms} ms left" for c in late)


def _effects(picture: Picture) -> list[Effect]:
    return [e for ledger in (picture.ledgers or {}).values() for e in ledger.effects]


def _calls(picture: Picture) -> list[Call]:
    return [c for ledger in (picture.ledgers or {}).values() for c in ledger.calls]


CHECKS = (
    effect_is_there_at_most_once,
    processed_has_every_effect,
    compensated_has_no_effect,
    calls_stay_within_what_was_granted,
    no_effect_after_its_undo,
    tokens_never_fall,
    no_call_was_sent_with_its_time_up,
)
