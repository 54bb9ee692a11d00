"""Keeps a running stack whole: notices deaths, starts what died again, and tells when it can work again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from devstack.processes.keeper import Keepable, Keeper, Restart
from devstack.stack.events import Died, Ready, Restarted, StackEvent
from devstack.stack.members import Member

_LOOK_EVERY_S = 0.1


class StackKeeper:
    """Watches servers and members. Servers are ready when they have started, members when they say so.

    `run` must be awaited in the main thread: children die with the thread that started them.
    """

    def __init__(
        self, servers: Sequence[Keepable], members: Sequence[Member], emit: Callable[[StackEvent], None]
    ) -> None:
        self._parts: list[Keepable] = [*servers, *(m.process for m in members)]
        self._members = {m.name: m for m in members}
        self._keeper = Keeper(self._parts, on_restart=self._note_restart)
        self._emit = emit
        self._died_at: dict[str, float] = {}
        self._returning: set[str] = set()

    async def run(self) -> None:
        """Keep everything running until cancelled."""
        while True:
            self._note_deaths()
            self._keeper.tick()
            await self._note_returns()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _note_deaths(self) -> None:
        for part in self._parts:
            dead = part.name not in self._died_at or part.name in self._returning
            if dead and not part.is_alive():
                self._died_at.setdefault(part.name, monotonic())
                self._returning.discard(part.name)
                self._emit(Died(part.name, self._how(part.name)))

    def _how(self, name: str) -> str:
        code = self._members[name].process.poll() if name in self._members else None
        if code is None:
            return "ended"
        return f"killed by signal {-code}" if code < 0 else f"ended with code {code}"

    def _note_restart(self, restart: Restart) -> None:
        member = self._members.get(restart.name)
        pid = member.process.pid if member else None
        self._emit(Restarted(restart.name, pid, restart.deaths, restart.pause, restart.error, restart.last_words))
        if restart.error is not None:
            return
        if member is not None:
            self._returning.add(restart.name)
        else:
            self._emit(Ready(restart.name, "is back", monotonic() - self._died_at.pop(restart.name)))

    async def _note_returns(self) -> None:
        for name in sorted(self._returning):
            member = self._members[name]
            if await member.is_ready():
                self._returning.discard(name)
                down = monotonic() - self._died_at.pop(name)
                self._emit(Ready(name, f"is back as process {member.process.pid}", down))
