"""Every planted bug, and whether its tier has seen it: `make planted-bugs`.

`python -m chaos.planted [--only NAME ...] [--seed N] [--jobs N] [-o FILE]`. Exit code 1: one was missed, or the
same runs are not clean without any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from chaos.planted.bug import CHAOS, Bug
from chaos.planted.bugs import BUGS, NOTHING
from chaos.planted.run import Broken, Showing, show

_ROW = "{:<38} {:<7} {:>5} {:>6}  {}"


async def run(bugs: Sequence[Bug], *, seed: int, jobs: int) -> list[Showing]:
    """Show bugs, so many at once, each lot with its control; a row for each as it comes."""
    print(_ROW.format("bug", "tier", "seeds", "s", "caught by"), flush=True)
    ordered = sorted(bugs, key=lambda bug: bug.tier == CHAOS)
    lots = [lot for n in range(jobs) if (lot := ordered[n::jobs])]

    async def one(lot: Sequence[Bug]) -> list[Showing]:
        found = []
        try:
            async for showing in show(lot, seed=seed):
                found.append(showing)
                _tell(showing)
        except Broken as error:
            print(error, file=sys.stderr, flush=True)
        return found

    return [showing for found in await asyncio.gather(*(one(lot) for lot in lots)) for showing in found]


def _tell(showing: Showing) -> None:
    if showing.bug == NOTHING:
        verdict = "clean" if showing.is_well else "NOT CLEAN"
    else:
        verdict = ", ".join(showing.shown_by) or "MISSED"
    name = "no bug" if showing.bug == NOTHING else showing.bug
    print(_ROW.format(name, showing.tier, showing.seeds, showing.seconds, verdict), flush=True)
    if not showing.is_well:
        print(*(f"    {text}" for text in showing.violations), sep="\n", flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="chaos.planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="bugs whose name has this in it; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="the first one, where seeds matter")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, each with servers of its own")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="takes the result as JSON")
    given = parser.parse_args()
    bugs = [bug for bug in BUGS if any(o in bug.name for o in given.only or [""])]
    if not bugs:
        parser.error(f"no bug has {given.only} in its name")
    print(f"seed {given.seed}")
    began = monotonic()
    showings = asyncio.run(run(bugs, seed=given.seed, jobs=given.jobs))
    seen = {s.bug for s in showings if s.is_well}
    missed = [bug.name for bug in bugs if bug.name not in seen]
    clean = all(s.is_well for s in showings if s.bug == NOTHING)
    print(f"{len(bugs) - len(missed)} of {len(bugs)} caught in {monotonic() - began:.0f} s", *missed, sep="\nMISSED ")
    if given.output:
        mistakes = {bug.name: bug.mistake for bug in bugs}
        table = [asdict(s) | {"mistake": mistakes.get(s.bug, "none")} for s in showings]
        given.output.write_text(json.dumps(table, indent=1) + "\n")
    return int(bool(missed) or not clean)


if __name__ == "__main__":
    sys.exit(main())
