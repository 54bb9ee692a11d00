"""Alembic environment of the state database."""

from store.migrate import run_migrations

run_migrations()
