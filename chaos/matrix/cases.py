"""The cases of the crash matrix: every single kill, and pairs of kills drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.matrix.no_deaths import NO_DEATHS
from chaos.matrix.scenarios import SCENARIOS, Scenario


@dataclass(frozen=True)
class Case:
    """A scenario, and where somebody dies in it, one after the other."""

    scenario: Scenario
    kills: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called, and found by with `--only`."""
        kills = " + ".join(k.removeprefix("*") for k in self.kills)
        return f"{self.scenario.name}: {kills}" if kills else self.scenario.name


def singles() -> Iterator[Case]:
    """Every point once, what needs a series of its own, and the scripts in which nobody dies."""
    for s in (*SCENARIOS, *NO_DEATHS):
        yield from (Case(s, (point,)) for stage in s.once for point in stage)
        yield from (Case(s, kills) for kills in s.more)
    yield from (Case(s, ()) for s in NO_DEATHS)


def pairs(number: int, seed: int) -> Iterator[Case]:
    """So many pairs of kills in the life of one task, the second further on than the first."""
    draw = random.Random(seed)  # noqa: S311 (repeatable, no secret)
    paths = [s for s in SCENARIOS if len(s.path) > 1]
    while number:
        s = draw.choice(paths)
        first = draw.randrange(len(s.path) - 1)
        second = draw.randrange(first + 1, len(s.path))
        kills = draw.choice(s.path[first]), draw.choice(s.path[second])
        if not s.firsts & set(s.path[second]) and not _is_asked(*kills):
            number -= 1
            yield Case(s, kills)


def _is_asked(first: str, second: str) -> bool:
    """Whether the second is of a call that is not made again: where the first may have come, the service is asked."""
    when, _, call = first.partition(":")
    again, _, same = second.partition(":")
    return call == same and call.startswith("call:") and when != "before" and again != "after"
