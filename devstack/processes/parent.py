"""A child that ends when its parent ends, however the parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_PID_VARIABLE = "SAS_PARENT_PID"
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5


def die_with_parent(pid: int) -> None:
    """Makes this process receive SIGTERM when its parent is gone. Call it first thing in the child.

    On Linux the kernel sends the signal, and it does so when the *thread* that started us ends: the parent
    must start its children from a thread that lives as long as it does. Elsewhere a thread watches.

    Args:
        pid: the parent's process id, as the parent wrote it into `SAS_PARENT_PID`.
    """
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch, args=(pid,), name="parent-watch", daemon=True).start()
    if os.getppid() != pid:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def die_with_recorded_parent() -> None:
    """Does the same with the pid in `SAS_PARENT_PID`; does nothing for a process that was started by hand."""
    if recorded := os.environ.get(PARENT_PID_VARIABLE):
        die_with_parent(int(recorded))


def _watch(pid: int) -> None:
    while os.getppid() == pid:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
