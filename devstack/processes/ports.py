"""TCP ports on the loopback interface: free ones, and who listens.

A server binds its port itself, and only that settles whose it is: a port is chosen, the server is started, and
another is chosen if the server says that it was taken meanwhile. Whatever answers at the port counts only if the
server's own process listens there: it could be another stack's.
"""

from __future__ import annotations

import socket

import psutil  # type: ignore[import-untyped]

LOOPBACK = "127.0.0.1"
ATTEMPTS = 5
"""So often is a server started at most, each time on another port."""


def was_taken(words: str, *ports: int) -> bool:
    """Whether a server that is gone lost one of its ports to somebody else: by its last words, or by looking.

    Not every server finds words: Temporal's dies of a nil pointer where two bind the same port at once.
    """
    return "address already in use" in words.lower() or not all(_can_bind(port) for port in ports if port)


def listens(pid: int, port: int) -> bool:
    """Whether this very process listens on that port."""
    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return False
    return any(s.status == psutil.CONN_LISTEN and s.laddr.port == port for s in found)


def free_port(preferred: int | None = None) -> int:
    """Returns a port that could be bound on 127.0.0.1 a moment ago.

    Args:
        preferred: taken if it is free; otherwise the operating system chooses.
    """
    if preferred and _can_bind(preferred):
        return preferred
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # The servers set it too: connections in TIME_WAIT do not make a port taken, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
