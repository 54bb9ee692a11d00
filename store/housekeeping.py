"""The housekeeper: finishes or removes submissions whose submitter died between its writes.

Anybody may do this at the same time, and die anywhere in it: each write decides by itself. Whoever is about to remove a
row puts an `abandoned` record first, so that a submitter that comes late must look at the row again.
"""

from __future__ import annotations

from datetime import timedelta

import structlog

from store.admission import Admission, Unfinished
from store.connection import is_of_rows
from store.orders import Orders

log = structlog.get_logger(__name__)

HOUSEKEEPER = "housekeeper"
"""Who confirms a task in its events, if it is not its submission."""

_PAGE = 100


class Housekeeper:
    """Looks after rows that stay unconfirmed for longer than `grace`, a page a round."""

    def __init__(self, admission: Admission, orders: Orders, grace: timedelta) -> None:
        self._admission, self._orders, self._grace = admission, orders, grace
        self._last: Unfinished | None = None

    async def tidy(self) -> None:
        """Look at the next page; behind the last one begins the first again.

        Raises:
            Unreachable: A store did not answer; the next round goes on.
        """
        page = await self._admission.unconfirmed(self._grace, _PAGE, self._last)
        for row in page:
            self._last = row
            try:
                await self.finish(row)
            except Exception as error:
                if not is_of_rows(error):
                    raise
                message = f"its submission can be neither confirmed nor removed: {error}"
                await self._admission.alert_once("submission_stuck", row.task_id, message)
        if len(page) < _PAGE:
            self._last = None

    async def finish(self, row: Unfinished) -> None:
        """Confirm a row if it has its business record; otherwise remove it, as it was seen."""
        if not await self._orders.abandon(row.task_id, row.definition, row.digest):
            await self._admission.confirm(row.task_id, row.digest, actor=HOUSEKEEPER)
        elif await self._admission.remove(row):
            log.warning("submission abandoned", task_id=row.task_id)
