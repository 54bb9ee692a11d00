"""What is wrong with a definition by itself: tables of what is said, and of when.

Rules are asked in three rounds, as each needs what the one before it holds: names, steps, the graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from domain.ids import NAME
from domain.worst_case import worst_case

if TYPE_CHECKING:  # a definition is checked by this as it is made
    from domain.definition import Definition, Step

MOST_STEPS = 100
"""Bound on the steps of a definition: those side by side are pending at once, and every step is in the history."""

INLINE_LIMIT = timedelta(seconds=5)
"""An inline step holds its workflow task, and signals wait for it: so it must be short."""


def problems_of(definition: Definition) -> list[str]:
    """What is wrong, each naming the step and the value; empty for a definition that may be run."""
    return _name_problems(definition) or _step_problems(definition) or _graph_problems(definition)


def _name_problems(definition: Definition) -> list[str]:
    names = [s.name for s in definition.steps]
    return that_hold(
        {
            f"its name must match {NAME.pattern}": not NAME.fullmatch(definition.name),
            "it has no steps": not names,
            f"it has {len(names)} steps; {MOST_STEPS} are the most, as Temporal bounds what is pending at once": (
                len(names) > MOST_STEPS
            ),
            **{f"step name {n!r} is used twice": names.count(n) > 1 for n in sorted(names)},
            **{f"step name {n!r} must match {NAME.pattern}": not NAME.fullmatch(n) for n in names},
        }
    )


def _step_problems(definition: Definition) -> list[str]:
    factor = definition.backoff.factor
    found = that_hold(
        {f"the factor of its back-off must be a number from 1 on, not {factor}": not 1 <= factor < math.inf}
    )
    for step in definition.steps:
        for rules in (_rules_of_step, _rules_of_budgets, _rules_of_undo):
            found += [f"step {step.name}: {problem}" for problem in that_hold(rules(definition, step))]
    return found


def _rules_of_step(definition: Definition, step: Step) -> dict[str, bool]:
    inline = step.queue is None
    return {
        **{f"after unknown step {a!r}": definition.find(a) is None for a in definition.after(step)},
        f"complete-within must be positive, not {step.within}": step.within <= timedelta(0),
        f"an inline step may take {INLINE_LIMIT} at most, not {step.within}; give it a queue": (
            inline and step.within > INLINE_LIMIT
        ),
        "a step that answers later can't be inline; give it a queue": inline and step.answers_later,
        "a pivot or a step without effect has no undo": step.undo is not None and (step.pivot or step.no_effect),
    }


def _rules_of_budgets(definition: Definition, step: Step) -> dict[str, bool]:
    """Budgets hold what the layers together want."""
    worst = worst_case(definition, step)
    return {
        "its call allowance must be at least 1": step.calls < 1,
        f"its allowance of {step.calls} calls exceeds its budget of {step.budget}": step.calls > step.budget,
        f"{worst.attempts} attempts of {step.calls} calls are {worst.calls} calls, over its budget of {step.budget}:"
        " lower calls, threshold or extended waits, or raise the budget": worst.calls > step.budget,
    }


def _rules_of_undo(definition: Definition, step: Step) -> dict[str, bool]:
    """So do those of undo, which has the larger one."""
    if (undo := step.undo) is None:
        return {}
    worst = worst_case(definition, step)
    return {
        "its undo's call allowance must be at least 1": undo.calls < 1,
        f"its undo allowance of {undo.calls} calls exceeds its budget of {undo.budget}": undo.calls > undo.budget,
        f"{worst.undo_attempts} undo attempts of {undo.calls} calls are {worst.undo_calls} calls, over its undo budget"
        f" of {undo.budget}": worst.undo_calls > undo.budget,
        f"its undo budget of {undo.budget} must be larger than its budget of {step.budget}": undo.budget <= step.budget,
    }


def _graph_problems(definition: Definition) -> list[str]:
    before = _before(definition)
    if stuck := sorted(s.name for s in definition.steps if s.name not in before):
        return [f"steps {', '.join(stuck)} wait for one another in a circle"]
    steps = [definition.step(name) for name in before]
    pivots = {s.name for s in steps if s.pivot}
    return that_hold(
        {
            **{
                f"step {s.name} has an effect but no undo, and is not behind a pivot": not (
                    s.undo or s.no_effect or s.pivot or before[s.name] & pivots
                )
                for s in steps
            },
            **{
                f"step {s.name} is inline and step {other.name} has a queue, and both may run at once: what has a queue"
                " is asked for when what is inline is over, with its time running; give both a queue, or neither": (
                    s.queue is None and other.queue is not None and _side_by_side(s, other, before)
                )
                for s in steps
                for other in steps
            },
        }
    )


def _before(definition: Definition) -> dict[str, set[str]]:
    """For each step, in an order in which they can be done, all that come before it; without those in a circle."""
    before: dict[str, set[str]] = {}
    while ready := [s for s in definition.steps if s.name not in before and before.keys() >= {*definition.after(s)}]:
        for step in ready:
            direct = definition.after(step)
            before[step.name] = {*direct, *(name for d in direct for name in before[d])}
    return before


def _side_by_side(one: Step, other: Step, before: Mapping[str, set[str]]) -> bool:
    return one.name not in before[other.name] and other.name not in before[one.name]


def that_hold(rules: Mapping[str, bool]) -> list[str]:
    """What is said by a table of rules."""
    return [says for says, holds in rules.items() if holds]
