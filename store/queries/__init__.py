"""The statements of both databases: one a file, each of which says first what it guarantees."""

from functools import cache
from pathlib import Path


@cache
def query(name: str) -> str:
    """Text of `store/queries/<name>.sql`."""
    return (Path(__file__).parent / f"{name}.sql").read_text()
