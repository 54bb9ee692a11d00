"""Fresh databases with their login roles: on a new server, or from the templates of one that tests share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

import psycopg

from definitions import registry
from devstack.servers.postgres import EmbeddedPostgres
from domain.definition import Definition
from domain.faults import Unreachable
from store.admission import Admission
from store.migrate import migrate
from testing.waiting import eventually


def make_databases(dsn: Callable[[str], str], *, state: str = "state", orders: str = "orders") -> str:
    """Both databases and their login roles, on a new server. `dsn`: its owner's address of a database.

    Returns:
        The owner's address of the state store.
    """
    with psycopg.connect(dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {state}")
        connection.execute(f"CREATE DATABASE {orders}")
        migrate(dsn(state), "state")
        migrate(dsn(orders), "orders")
        connection.execute("CREATE ROLE app LOGIN PASSWORD 'app' IN ROLE scheduler_app")
        connection.execute("CREATE ROLE sup LOGIN PASSWORD 'sup' IN ROLE scheduler_supervisor")
    return dsn(state)


def make_templates(server: EmbeddedPostgres) -> None:
    """Give a new server a migrated template of each database, and the two login roles."""
    make_databases(server.dsn, state="state_template", orders="orders_template")


class Databases:
    """A pair of fresh databases, made from the templates of a server: addresses by role; `with` removes it.

    Nothing is kept open, so that the server may be killed meanwhile.
    """

    def __init__(self, server: EmbeddedPostgres) -> None:
        suffix = uuid4().hex[:10]
        state, orders = f"state_{suffix}", f"orders_{suffix}"
        self._server, self._names = server, (state, orders)
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {state} TEMPLATE state_template")
            connection.execute(f"CREATE DATABASE {orders} TEMPLATE orders_template")
        self.owner = server.dsn(state)
        self.orders_owner = server.dsn(orders)
        self.app = server.dsn(state, user="app", password="app")
        self.orders = server.dsn(orders, user="app", password="app")
        self.supervisor = server.dsn(state, user="sup", password="sup")

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove both, whoever is still connected."""
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            for name in self._names:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def publish_all(admission: Admission) -> None:
    """Publish every definition; a state store that is slow to take connections on a busy machine is waited for."""
    for definition in registry():
        await eventually(partial(_published, admission, definition))


async def _published(admission: Admission, definition: Definition) -> bool:
    with suppress(Unreachable):
        await admission.publish(definition)
        return True
    return False
