"""Runs tiers with bugs in them, in processes of their own, and says which of their invariants showed which bug."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import monotonic

from chaos.planted.bug import CHAOS, Bug
from chaos.planted.bugs import NOTHING
from chaos.planted.tier import REPORT
from testing import ROOT

MOST_SEEDS = 8
"""Of the chaos tier, until a bug counts as missed; a run of cases is the same with every seed."""


class Broken(RuntimeError):
    """A tier has ended before it was done."""


@dataclass(frozen=True)
class Showing:
    """What became of a bug, or of the control.

    Attributes:
        shown_by: The invariants that showed it, of those that must. seeds: Runs until then.
        violations: All of the last run.
    """

    bug: str
    tier: str
    shown_by: tuple[str, ...]
    seeds: int
    seconds: float
    violations: list[str]

    @property
    def is_well(self) -> bool:
        """Whether the bug was seen; or whether nothing was, where there was none."""
        return not self.violations if self.bug == NOTHING else bool(self.shown_by)


async def show(bugs: Sequence[Bug], *, seed: int = 1, control: bool = True) -> AsyncIterator[Showing]:
    """Run the tier of each, those of the matrix on one runner, and that of all of them with no bug in it first.

    Raises:
        Broken: The process has ended before it was done.
    """
    by_name = {bug.name: bug for bug in bugs}
    async for name, found, seconds in _tier([*([NOTHING] if control else []), *by_name], seed):
        bug = by_name.get(name)
        if bug is None:
            yield Showing(NOTHING, "all", (), 1, seconds, found)
        elif bug.tier != CHAOS:
            yield Showing(name, "matrix", _of(bug, found), 1, seconds, found)
        else:
            yield await _until_seen(bug, seed, Showing(name, CHAOS, _of(bug, found), 1, seconds, found))


async def _until_seen(bug: Bug, seed: int, last: Showing) -> Showing:
    while not last.shown_by and last.seeds < MOST_SEEDS:
        began = monotonic()
        async for name, found, _ in _tier([bug.name], seed + last.seeds):
            took = round(last.seconds + monotonic() - began, 1)
            last = Showing(name, CHAOS, _of(bug, found), last.seeds + 1, took, found)
    return last


def _of(bug: Bug, found: Sequence[str]) -> tuple[str, ...]:
    return tuple(i for i in bug.shown_by if any(f": {i}: " in violation for violation in found))


async def _tier(names: Sequence[str], seed: int) -> AsyncIterator[tuple[str, list[str], float]]:
    """What `tier.py` prints for each of these, as it comes."""
    environment = {k: v for k, v in os.environ.items() if k != "PLANT"}
    command = [sys.executable, "-m", "chaos.planted.tier", *names, "--seed", str(seed)]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, cwd=ROOT, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    assert process.stdout
    try:
        async for line in process.stdout:
            if line.startswith(REPORT.encode()):
                yield tuple(json.loads(line.removeprefix(REPORT.encode())))
        if code := await process.wait():
            raise Broken(f"the tier ended with {code}")
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)  # it takes its servers with it
            await process.wait()
