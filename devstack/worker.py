"""`python -m devstack.worker`: `worker.py`, which ends when the local stack that started it ends."""

from __future__ import annotations

import worker
from devstack.processes.parent import die_with_recorded_parent

if __name__ == "__main__":
    die_with_recorded_parent()
    worker.start()
