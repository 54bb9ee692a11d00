"""What `doctor` looks at, one check each: what it is, where, whether it is well, and what to do if it isn't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.agent import setting_of
from definitions import registry
from domain.faults import Unreachable
from domain.redaction import redact
from domain.search_attributes import SEARCH_ATTRIBUTES
from operators.times import duration
from runtime.settings import LEAST_SECRET, Settings
from runtime.temporal import connect
from store.admission import ALIVE
from store.connection import is_shared, place_of
from store.database import Database
from store.reads import open_reads
from store.schema import MIGRATE_COMMAND, check_schema
from store.schema import Database as DatabaseName
from store.supervision import Supervision
from supervisor.schedule import SCHEDULE_ID

_PATIENCE_S = 3
_UP = "start the embedded stack with `python starter.py up`"
_WORKER = "start one: `python worker.py`"
_LATER = "agents where a step answers later"


@dataclass(frozen=True)
class Check:
    """One finding. `todo` is empty where all is well. `elsewhere`: not given here, only other processes need it."""

    what: str
    where: str
    found: str
    todo: str = ""
    elsewhere: bool = False

    def __post_init__(self) -> None:
        for name in ("where", "found", "todo"):
            object.__setattr__(self, name, redact(getattr(self, name)))

    @property
    def is_well(self) -> bool:
        """Whether nothing is to be done."""
        return not self.todo


async def all_checks(settings: Settings) -> AsyncIterator[Check]:
    """Every check in turn; those that need what was found missing are left out.

    Both databases are needed here. What other processes need is looked at where it is given; where it is not, the
    role that needs it is named: a worker refuses to start without it.
    """
    state = await _database(settings, "state", "database_url")
    yield state
    yield await _database(settings, "orders", "orders_url")
    yield await _supervisor_role(settings)
    if state.is_well:
        async for check in _on_record(settings):
            yield check
    async for check in _temporal():
        yield check
    for service, roles in sorted(_callers(settings).items()):
        url = settings.services.get(service)
        yield await _answers(f"service {service}", setting_of(service), url, " or ".join(sorted(roles)))
    if not settings.callback_secret.get_secret_value():
        yield _not_given("callback secret", "SAS_CALLBACK_SECRET", f"callbacks, or {_LATER}")
    for name in settings.short_secrets():
        found = f"has fewer than {LEAST_SECRET} characters"
        yield Check("callback secret", name, found, "`openssl rand -hex 32` makes one")
    url = settings.callback_url if "callback_url" in settings.model_fields_set else None
    start = "start a worker with the role: `python worker.py --roles callbacks`"
    yield await _answers("callbacks", "SAS_CALLBACK_URL", url, _LATER, start=start)


def _not_given(what: str, setting: str, roles: str) -> Check:
    return Check(what, setting, f"not given here, needed by workers with the role {roles}", elsewhere=True)


async def _database(settings: Settings, database: DatabaseName, setting: str) -> Check:
    dsn = getattr(settings, setting).get_secret_value()
    what = f"{database} database"
    if not dsn:
        return Check(what, f"SAS_{setting.upper()}", "no address", f"set SAS_{setting.upper()}, or {_UP}")
    place, variable = place_of(dsn), f"SAS_{setting.upper()}"
    try:
        async with asyncio.timeout(2 * _PATIENCE_S):
            await asyncio.to_thread(check_schema, dsn, database)
            found, todo = await _session(dsn, database, variable)
    except TimeoutError:
        found, todo = "does not answer", f"start it, or correct {variable}"
    except Unreachable as error:
        wrong_version = MIGRATE_COMMAND in str(error)
        todo = f"`{MIGRATE_COMMAND}`" if wrong_version else f"start it, correct {variable}, or {_UP}"
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


async def _supervisor_role(settings: Settings) -> Check:
    what, setting = "supervisor role", "SAS_SUPERVISOR_DATABASE_URL"
    dsn = settings.supervisor_database_url.get_secret_value()
    if not dsn:
        return _not_given(what, setting, "supervisor")
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


async def _on_record(settings: Settings) -> AsyncIterator[Check]:
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
    return Check(what, place, f"seen {duration(since)} ago", _WORKER if since > 3 * ALIVE else "")


async def _temporal() -> AsyncIterator[Check]:
    try:
        client = await connect()
    except Unreachable as error:
        yield Check("Temporal", "TEMPORAL_ADDRESS", str(error), f"start it, correct TEMPORAL_ADDRESS, or {_UP}")
        return
    place = client.service_client.config.target_host
    yield Check("Temporal", place, "answers")
    namespace = await _namespace(client, place)
    yield namespace
    if namespace.is_well:
        yield await _search_attributes(client, place)
        yield await _schedule(client, place)


async def _namespace(client: Client, place: str) -> Check:
    what = f"namespace {client.namespace}"
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=_PATIENCE_S))
    except RPCError as error:
        todo = f"`temporal operator namespace create -n {client.namespace}`, or set TEMPORAL_NAMESPACE"
        return Check(what, place, error.message, todo)
    return Check(what, place, "is there")


async def _search_attributes(client: Client, place: str) -> Check:
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        answer = await client.operator_service.list_search_attributes(request, timeout=timedelta(seconds=_PATIENCE_S))
    except RPCError as error:
        return Check("search attributes", place, error.message, "ask whoever runs the server to list them")
    there = {name: IndexedValueType.Name(kind) for name, kind in answer.custom_attributes.items()}
    wrong = [n for n, k in SEARCH_ATTRIBUTES.items() if there.get(n) != f"INDEXED_VALUE_TYPE_{k.upper()}"]
    if wrong:
        flags = " ".join(f"--name {n} --type {SEARCH_ATTRIBUTES[n]}" for n in wrong)
        todo = f"`temporal operator search-attribute create -n {client.namespace} {flags}`"
        return Check("search attributes", place, f"missing, or of another type: {', '.join(wrong)}", todo)
    return Check("search attributes", place, "registered")


async def _schedule(client: Client, place: str) -> Check:
    what = f"Schedule {SCHEDULE_ID}"
    try:
        found = await client.get_schedule_handle(SCHEDULE_ID).describe(rpc_timeout=timedelta(seconds=_PATIENCE_S))
    except RPCError as error:
        missing = error.status is RPCStatusCode.NOT_FOUND
        todo = "start a worker with the role, which makes it: `python worker.py --roles supervisor`"
        return Check(what, place, "is missing" if missing else error.message, todo)
    if found.schedule.state.paused:
        return Check(what, place, "is paused", f"`temporal schedule toggle -s {SCHEDULE_ID} --unpause`")
    return Check(what, place, "is there")


def _callers(settings: Settings) -> dict[str, set[str]]:
    """The roles that call each service; none for one that has an address here and no definition names."""
    found: dict[str, set[str]] = {service: set() for service in settings.services}
    for definition in registry():
        for step in definition.steps:
            for service in step.services:
                found.setdefault(service, set()).add("agents" if step.queue else "scheduler")
    return found


async def _answers(what: str, setting: str, url: str | None, roles: str, *, start: str = "start it") -> Check:
    """Whether something listens there, if the setting is given."""
    if url is None:
        return _not_given(what, setting, roles)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(_PATIENCE_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except (OSError, ValueError) as error:
        return Check(what, url, str(error) or "does not answer", f"{start}, or correct {setting}")
    return Check(what, url, "listens")
