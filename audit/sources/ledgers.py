"""What the services' own ledgers have on record; only the simulators have any."""

from __future__ import annotations

from datetime import datetime

import httpx

from audit.evidence import Ledgers
from domain.faults import Unreachable, UsageError


async def read_ledgers(url: str, asked_at: datetime) -> Ledgers:
    """The ledgers that the simulators at `url` give. `asked_at`: by the state store's clock, just now.

    Raises:
        Unreachable: Nothing answers there. UsageError: What answers has no ledgers.
    """
    try:
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.get(url.rstrip("/") + "/control/ledger")
        found = answer.raise_for_status().json()
    except httpx.HTTPStatusError as error:
        raise UsageError(f"no ledgers at {url}: status {error.response.status_code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unreachable(f"the ledgers at {url} can't be read: {error!r}") from error
    except ValueError as error:
        raise UsageError(f"no ledgers at {url}: {error}") from error
    return Ledgers.of(found, asked_at)
