"""What the tests and the fault tiers share: databases, simulators, the bench, records and definitions to play with.

It runs on real servers; nothing of the system imports it, and it imports neither `chaos` nor `tests`.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Of the repository: processes are started from here."""
