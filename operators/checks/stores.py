"""Both databases, the rights of those who use them, and what the state store says of Supervisor and workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

from definitions import registry
from domain.faults import Unreachable
from operators.checks.finding import PATIENCE_S, UP, Check, not_given
from operators.times import duration
from runtime.settings import Settings
from store.admission import GONE
from store.connection import is_shared, place_of
from store.database import Database
from store.reads import open_reads
from store.schema import MIGRATE_COMMAND, DatabaseName, check_schema
from store.supervision import Supervision

_WORKER = "start one: `python worker.py`"


async def check_database(settings: Settings, database: DatabaseName, setting: str) -> Check:
    """Whether it answers, at the newest schema version, with the application's rights."""
    dsn = getattr(settings, setting).get_secret_value()
    what = f"{database} database"
    if not dsn:
        return Check(what, f"SAS_{setting.upper()}", "no address", f"set SAS_{setting.upper()}, or {UP}")
    place, variable = place_of(dsn), f"SAS_{setting.upper()}"
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            await asyncio.to_thread(check_schema, dsn, database)
            found, todo = await _session(dsn, database, variable)
    except TimeoutError:
        found, todo = "does not answer", f"start it, or correct {variable}"
    except Unreachable as error:
        wrong_version = MIGRATE_COMMAND in str(error)
        todo = f"`{MIGRATE_COMMAND}`" if wrong_version else f"start it, correct {variable}, or {UP}"
        found = str(error)
    return Check(what, place, found, todo)


async def _session(dsn: str, database: DatabaseName, variable: str) -> tuple[str, str]:
    """What a session there finds, and what to do about it: a pooler, no writes, or rights beyond the application's."""
    if await is_shared(dsn):
        todo = f"point {variable} at the server itself, or at a pooler that lends a session until it is closed"
        return "is behind a pooler that lends sessions by transaction", todo
    role = "acting_role()" if database == "state" else "'application'"
    async with Database(dsn, name=f"{database} database", size=1) as opened:
        (row,) = await opened.rows(f"SELECT {role} AS role, current_setting('transaction_read_only') AS read_only")
    if row["read_only"] == "on":
        return "is read-only", "let it take writes again: is its disk full, or is it fenced?"
    if row["role"] != "application":
        todo = f"point {variable} at a login that is only a member of scheduler_app"
        return f"this login has the rights of the {row['role']}, not of the application", todo
    return "answers, its schema is the newest", ""


async def check_supervisor_role(settings: Settings) -> Check:
    """Whether the Supervisor's login may ask for recovery, and no more."""
    what, setting = "supervisor role", "SAS_SUPERVISOR_DATABASE_URL"
    dsn = settings.supervisor_database_url.get_secret_value()
    if not dsn:
        return not_given(what, setting, "supervisor")
    place = place_of(dsn)
    try:
        async with Database(dsn, name="state store", size=1) as database:
            rows = await database.rows(
                "SELECT current_user AS name, has_table_privilege('sweep', 'INSERT') AS sweeps,"
                " acting_role() <> 'supervisor' OR has_table_privilege('step', 'INSERT')"
                " OR has_table_privilege('task', 'DELETE') OR has_column_privilege('task', 'epoch', 'UPDATE') AS more"
            )
    except Unreachable as error:
        return Check(what, place, str(error), f"start it, or correct {setting}")
    role = rows[0]
    if not role["sweeps"]:
        return Check(what, place, f"{role['name']} may not sweep", f"GRANT scheduler_supervisor TO {role['name']}")
    if role["more"]:
        todo = f"point {setting} at a login that is only a member of scheduler_supervisor"
        return Check(what, place, f"{role['name']} may do more than ask for recovery", todo)
    return Check(what, place, f"{role['name']} may ask for recovery, and no more")


async def check_supervision(settings: Settings) -> AsyncIterator[Check]:
    """What the state store says of the Supervisor and the workers."""
    dsn = settings.database_url.get_secret_value()
    async with Database(dsn, name="state store", size=1) as database, open_reads(dsn) as reads:
        age = await Supervision(database).last_sweep_age()
        seen = {(d.name, d.version): since for d, since in await reads.definitions()}
    todo = "start a worker with the role: `python worker.py --roles supervisor`"
    if age is None:
        yield Check("last sweep", place_of(dsn), "there was none yet", todo)
    else:
        late = age > 3 * settings.sweep_interval
        yield Check("last sweep", place_of(dsn), f"{duration(age)} ago", todo if late else "")
    for definition in registry():
        what = f"worker for {definition.name} v{definition.version}"
        yield _worker(what, place_of(dsn), seen.get((definition.name, definition.version)))


def _worker(what: str, place: str, since: timedelta | None) -> Check:
    if since is None:
        return Check(what, place, "none shows itself", _WORKER)
    return Check(what, place, f"seen {duration(since)} ago", _WORKER if since > GONE else "")
