"""What the tests and the fault tiers share: databases, simulators, the bench, records and definitions to try.

It runs on real servers; nothing of the system imports it, and it imports neither `chaos` nor `tests`.
"""

import os
from pathlib import Path

from domain.packages import SAMPLES

ROOT = Path(__file__).parents[__name__.count(".") + 1]
"""Of the repository, or where the wheel is installed: processes are started from here."""

os.environ.setdefault(SAMPLES, "1")  # what they try are the samples
