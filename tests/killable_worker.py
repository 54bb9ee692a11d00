"""A worker that kills itself at a point named by KILL_AT (`before:` or `after:` a claim, a bookkeeping activity or an
Agent's action). The points are wrapped around the real parts here, so production code carries none of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from activities.agent import Agents
from activities.bookkeeping import Bookkeeping
from runtime.logs import set_up_logging
from runtime.roles import Role, run_roles
from runtime.settings import Settings
from store.state_store import StateStore

Method = Callable[..., Awaitable[Any]]


def die(point: str) -> None:
    """Die here, if this is the point."""
    if os.environ.get("KILL_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def around(method: Method, name: Callable[..., str], worth: Callable[[Any], bool] = lambda _: True) -> Method:
    """The method with a kill point before and behind it."""

    async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        die(f"before:{name(*args)}")
        result = await method(self, *args, **kwargs)
        if worth(result):
            die(f"after:{name(*args)}")
        return result

    return wrapped


def main() -> None:
    """Run the worker, with the points in place."""
    set_up_logging("INFO")
    StateStore.claim = around(StateStore.claim, lambda *_: "claim", bool)  # type: ignore[method-assign]
    Agents.perform = around(Agents.perform, lambda request, *_: request.action)  # type: ignore[method-assign]
    Bookkeeping._complete = around(Bookkeeping._complete, lambda hold, work, _: "record")  # type: ignore[method-assign]
    Bookkeeping._begin = around(Bookkeeping._begin, lambda hold, work, _: "perform")  # type: ignore[method-assign]
    services = {"stock", "payments", "shipping", "mail", "cloud"}
    roles = {Role(r) for r in os.environ["ROLES"].split(",")}
    asyncio.run(run_roles(Settings(), roles, services))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as worker.py does: the SDK can abort while the interpreter ends
