"""What `doctor` looks at, one check each: what it is, where, whether it is well, and what to do if it isn't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from activities.agent import Agent
from activities.agents import all_agents
from activities.credentials import Credentials
from activities.services import setting_of
from definitions import registry
from operators.checks.finding import PATIENCE_S, Check, not_given
from operators.checks.stores import check_database, check_supervision, check_supervisor_role
from operators.checks.temporal import check_temporal
from runtime.settings import LEAST_SECRET, Settings

_LATER = "agents where a step answers later"


async def all_checks(settings: Settings) -> AsyncIterator[Check]:
    """Every check in turn; those that need what was found missing are left out.

    Both databases are needed here. What other processes need is looked at where it is given; where it is not, the
    role that needs it is named: a worker refuses to start without it.
    """
    state = await check_database(settings, "state", "database_url")
    yield state
    yield await check_database(settings, "orders", "orders_url")
    yield await check_supervisor_role(settings)
    if state.is_well:
        async for check in check_supervision(settings):
            yield check
    async for check in check_temporal():
        yield check
    for service, roles in sorted(_callers(settings).items()):
        async for check in _check_service(service, " or ".join(sorted(roles)), settings):
            yield check
    if not settings.callback_secret.get_secret_value():
        yield not_given("callback secret", "SAS_CALLBACK_SECRET", f"callbacks, or {_LATER}")
    for name in settings.short_secrets():
        found = f"has fewer than {LEAST_SECRET} characters"
        yield Check("callback secret", name, found, "`openssl rand -hex 32` makes one")
    url = settings.callback_url if "callback_url" in settings.model_fields_set else None
    start = "start a worker with the role: `python worker.py --roles callbacks`"
    yield await _answers("callbacks", "SAS_CALLBACK_URL", url, _LATER, start=start)


def _callers(settings: Settings) -> dict[str, set[str]]:
    """The roles that call each service; none for one that has an address here and no definition names."""
    found: dict[str, set[str]] = {service: set() for service in settings.services}
    for definition in registry():
        for step in definition.steps:
            for service in step.services:
                found.setdefault(service, set()).add("agents" if step.queue else "scheduler")
    return found


async def _check_service(service: str, roles: str, settings: Settings) -> AsyncIterator[Check]:
    """Whether a service listens, and whether what its Agent needs to call it is given, if anything of it is."""
    agent = next((a for a in all_agents() if a.service == service), Agent)
    url, given = settings.services.get(service), settings.access.get(service, {})
    if agent.over_http:
        yield await _answers(f"service {service}", setting_of(service), url, roles)
    if url is not None or given:
        for problem in Credentials(service, given).missing(agent.needed()):
            yield Check(f"service {service}", "its credentials", problem, f"set it for workers with the role {roles}")


async def _answers(what: str, setting: str, url: str | None, roles: str, *, start: str = "start it") -> Check:
    """Whether something listens there, if the setting is given."""
    if url is None:
        return not_given(what, setting, roles)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
        writer.close()
    except (OSError, ValueError) as error:
        return Check(what, url, str(error) or "does not answer", f"{start}, or correct {setting}")
    return Check(what, url, "listens")
