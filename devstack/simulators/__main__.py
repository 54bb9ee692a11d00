"""`python -m devstack.simulators`: serves the simulated services until SIGTERM."""

import argparse
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from devstack.simulators.app import Settings, build_app

_PR_SET_PDEATHSIG = 1


class _AnnouncingServer(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            print(f"simulators ready on http://{host}:{port}", flush=True)


def main() -> None:
    """Serves; exits with 0 on SIGTERM or SIGINT."""
    arguments = _arguments()
    # uvicorn raises the signal again once it has shut down; without this the exit status would be -15.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    _die_with_parent()
    try:
        listener = socket.create_server((arguments.host, arguments.port), backlog=1024)
    except OSError as error:
        sys.exit(f"simulators can't listen on {arguments.host}:{arguments.port}: {error.strerror}")
    # Accepted connections inherit it. asyncio sets it only where the protocol is named, which is not so here;
    # without it every answer waits 40 ms for a delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    delay_s, stand_ins = arguments.machine_delay_ms / 1000, tuple(arguments.stand_in)
    app = build_app(Settings(arguments.state_dir, arguments.seed, delay_s, stand_ins))
    config = uvicorn.Config(
        app, http="h11", loop="asyncio", ws="none", log_level="warning", access_log=False,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    with listener:
        _AnnouncingServer(config).run(sockets=[listener])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulators", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=port_number, default=8790, help="0 picks a free one; the ready line names it")
    parser.add_argument("--state-dir", type=Path, required=True, help="directory of the ledgers")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws that fault rates make")
    parser.add_argument("--machine-delay-ms", type=int, default=1500, help="how long a machine takes")
    parser.add_argument("--stand-in", action="append", default=[], help="an action of another service; repeatable")
    return parser.parse_args()


def port_number(text: str) -> int:
    """A port. Raises ValueError, which the parser reports, unless it is one."""
    if not 0 <= int(text) <= 65_535:
        raise ValueError(text)
    return int(text)


def _die_with_parent() -> None:
    """Asks Linux for SIGTERM when the process named in SAS_PARENT_PID dies; without the variable, nothing."""
    parent = os.environ.get("SAS_PARENT_PID")
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(0)  # it died before the request was made


if __name__ == "__main__":
    main()
