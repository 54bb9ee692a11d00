"""Tables, constraints, guards and roles of the state store."""

from pathlib import Path

from alembic import op

from store.migrate import run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    for part in ("0001_tables.sql", "0001_guards.sql", "0001_roles.sql"):
        run_script(op.get_bind(), Path(__file__).parent / part)
