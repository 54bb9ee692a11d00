"""What a definition will do, before it does anything: its order, its worst case, and what it asks of others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import BaseModel

from activities.agents import all_agents
from domain.definition import Definition, Step
from domain.worst_case import UNDO_THRESHOLD, worst_case

_JITTER = 1.25
"""A back-off is made longer by up to a quarter."""


class StepForecast(BaseModel):
    """One step. `queue`: None where it runs inline; `if_refused`, `if_spent`: `undo` or `error`.

    `longest`: from its first attempt until its fate is decided, while stores, Temporal and workers are up.
    """

    name: str
    action: str
    after: list[str]
    queue: str | None
    why_there: str
    within: timedelta
    calls: int
    most_calls: int
    most_attempts: int
    longest: timedelta
    undo: str | None
    undo_most_calls: int
    undo_longest: timedelta
    pivot: bool
    if_refused: str
    if_spent: str


class ServiceForecast(BaseModel):
    """One remote service, and what it must keep to for the guarantees to hold."""

    name: str
    must: list[str]


class Forecast(BaseModel):
    """A definition. `undo_order`: of steps that all began one after the other. Bounds are sums over all steps."""

    definition: str
    version: int
    record: str
    steps: list[StepForecast]
    undo_order: list[str]
    not_undone: list[str]
    pivot: str | None
    most_calls: int
    longest: timedelta
    undo_most_calls: int
    undo_longest: timedelta
    services: list[ServiceForecast]


def forecast(definition: Definition, sweep_interval: timedelta) -> Forecast:
    """All of that; a missed deadline is found within `sweep_interval`."""
    steps = [_step(definition, s, sweep_interval) for s in definition.steps]
    names = sorted({service for s in definition.steps for service in s.services})
    return Forecast(
        definition=definition.name,
        version=definition.version,
        record=definition.record.__name__,
        steps=steps,
        undo_order=[s.name for s in reversed(steps) if s.undo],
        not_undone=[s.name for s in steps if not s.undo],
        pivot=next((s.name for s in steps if s.pivot), None),
        most_calls=sum(s.most_calls for s in steps),
        longest=sum((s.longest for s in steps), timedelta()),
        undo_most_calls=sum(s.undo_most_calls for s in steps),
        undo_longest=sum((s.undo_longest for s in steps), timedelta()),
        services=[ServiceForecast(name=name, must=list(_duties(definition, name))) for name in names],
    )


def _step(definition: Definition, step: Step, sweep_interval: timedelta) -> StepForecast:
    worst, wait = worst_case(definition, step), definition.extended_wait
    attempt = step.within + sweep_interval
    waits = wait.wait * wait.times if wait else timedelta()
    longest = worst.attempts * attempt + _backoffs(definition, definition.threshold) + waits * _JITTER
    quarantine = step.undo.quarantine if step.undo else None
    rounds = worst.undo_attempts // (UNDO_THRESHOLD + 1)
    undo = worst.undo_attempts * attempt + rounds * _backoffs(definition, UNDO_THRESHOLD)
    return StepForecast(
        name=step.name,
        action=step.action,
        after=list(definition.after(step)),
        queue=step.queue,
        why_there=_why_there(step),
        within=step.within,
        calls=step.calls,
        most_calls=worst.calls,
        most_attempts=worst.attempts,
        longest=longest,
        undo=step.undo.action if step.undo else None,
        undo_most_calls=worst.undo_calls,
        undo_longest=undo + (step.within + quarantine if quarantine else timedelta()),
        pivot=step.pivot,
        if_refused="error" if _is_behind_pivot(definition, step) else definition.refused(step),
        if_spent="error" if step.pivot or _is_behind_pivot(definition, step) else definition.on_spent,
    )


def _is_behind_pivot(definition: Definition, step: Step) -> bool:
    before = [definition.step(name) for name in definition.after(step)]
    return any(s.pivot or _is_behind_pivot(definition, s) for s in before)


def _backoffs(definition: Definition, times: int) -> timedelta:
    first, factor, most = definition.backoff.first, definition.backoff.factor, definition.backoff.most
    return sum((min(most, first * factor**n) for n in range(times)), timedelta()) * _JITTER


def _why_there(step: Step) -> str:
    if step.queue is None:
        return "as no queue is named: in the Scheduler's worker, which needs the service's address"
    reason = "as it answers later" if step.answers_later else "as the definition says"
    service = step.action.partition(".")[0]
    return f"{reason}: in workers with `--roles agents --agents {service}`"


def _duties(definition: Definition, service: str) -> Iterator[str]:
    """What this service must do, as its Agent and the definition have it."""
    agent = next(a for a in all_agents() if a.service == service)
    steps = [s for s in definition.steps if service in s.services]
    yield f"have no effect more when a key is repeated, for {_span(agent.remembers)}"
    if agent.over_http and agent.fence_header:
        yield "refuse a fencing token lower than it has seen"
    if any(s.undo for s in steps):
        yield f"undo by the keys of the original, for {_span(agent.undoes_within)}"
        later = [s.name for s in steps if s.undo and s.undo.quarantine]
        yield f"nothing more: {', '.join(later)} is undone again" if later else "refuse what comes after its undo"
    if agent.can_ask():
        yield "say what became of a key"
    if any(s.answers_later for s in steps):
        yield "post its answer to the callback address, again until it is taken"


def _span(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours / 24:g} days" if hours > 48 else f"{hours:g} h"
