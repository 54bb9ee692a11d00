"""What a run of the crash matrix found, as text, as JSON and as an exit code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.verdict import Code, machine
from domain.messages import Json


@dataclass
class Report:
    """A run. `unfired`: cases in which a kill did not come; `unkilled`: points that were passed, and nobody died there.

    A run in which either is not empty shows nothing: it is invalid, not passed.
    """

    seed: int
    cases: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    unfired: list[str] = field(default_factory=list)
    unkilled: list[str] = field(default_factory=list)
    duration_s: float = 0.0
    machine: Json = field(default_factory=machine)

    @property
    def code(self) -> Code:
        """The exit code. A violation counts also in a run that shows nothing else."""
        if self.violations:
            return Code.VIOLATED
        return Code.INVALID if self.unfired or self.unkilled else Code.PASSED

    def lines(self) -> Iterator[str]:
        """The report as text: kills by point, what was found, and a summary."""
        width = max((len(point) for point in self.kills), default=0)
        yield from (f"{point:<{width}}  {number:>4}" for point, number in sorted(self.kills.items(), key=_by_name))
        yield from (f"VIOLATION {text}" for text in self.violations)
        yield from (f"DID NOT FIRE {name}" for name in self.unfired)
        yield from (f"NOBODY DIED AT {name}" for name in self.unkilled)
        yield (
            f"seed {self.seed}: {self.cases} cases, {sum(self.kills.values())} kills at {len(self.kills)} points,"
            f" {len(self.violations)} violations, {len(self.unfired)} cases and {len(self.unkilled)} points not hit"
        )
        on = self.machine
        yield (
            f"{self.duration_s:.0f} s on {on['cpus']} cores, Python {on['python']}, commit {on['commit']}:"
            f" {self.code.name.lower()}"
        )

    def as_json(self) -> str:
        """The report as JSON."""
        return json.dumps({**vars(self), "verdict": self.code.name.lower()}, indent=1)


def _by_name(item: tuple[str, int]) -> list[str]:
    """Points of the same write or call beside each other."""
    when, _, name = item[0].partition(":")
    return [name, when]
