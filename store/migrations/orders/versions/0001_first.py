"""Table of the orders database."""

from pathlib import Path

from alembic import op

from store.migrate import run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    run_script(op.get_bind(), Path(__file__).parent / "0001_tables.sql")
