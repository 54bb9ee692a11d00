"""Tables, functions, triggers and roles of the state store."""

from pathlib import Path

from alembic import op

from store.migrate import run_folder, run_script

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    here, connection = Path(__file__).parent, op.get_bind()
    run_script(connection, here / "0001_tables.sql")
    run_folder(connection, "functions")
    run_folder(connection, "triggers")
    run_script(connection, here / "0001_roles.sql")
