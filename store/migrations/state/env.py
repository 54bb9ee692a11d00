"""Alembic environment of the state database."""

from store.migrate import run_migrations
from store.tables import STATE_STORE

run_migrations(STATE_STORE)
