"""Alembic environment of the orders database."""

from store.migrate import run_migrations

run_migrations()
