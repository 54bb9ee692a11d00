"""Alembic environment of the orders database."""

from store.migrate import run_migrations
from store.tables import ORDERS

run_migrations(ORDERS)
