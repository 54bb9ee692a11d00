"""The audit of a testbed, by all evidence there is: both stores, the services' ledgers, Temporal's runs, submitters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from audit.evidence import Call, Ledger, Ledgers, SubmissionReplies, SubmissionReply
from audit.run import AuditResult, audit
from audit.sources.ledgers import read_ledgers
from audit.sources.runs import read_runs
from audit.sources.stores import open_loader
from audit.task import Tolerances
from chaos.testbed import ChaosTestbed
from store.admission import AdmissionCaps

MATRIX_TOLERANCES = Tolerances(
    detection_delay=timedelta(seconds=3), network_delay=timedelta(seconds=5), clock_skew=timedelta(0)
)
"""Three sweeps, and what the faults of the matrix make of a call's way."""


async def audit_all(
    testbed: ChaosTestbed,
    answers: Sequence[SubmissionReply],
    *,
    tolerances: Tolerances = MATRIX_TOLERANCES,
    runs_of: Collection[str] | None = None,
    caps: AdmissionCaps | None = None,
) -> tuple[AuditResult, Ledgers]:
    """Check every invariant of all tasks.

    Args:
        answers: What submitters were told. runs_of: These tasks only; there are runs of others, which no store knows
            any more.

    Returns:
        What was found, and the ledgers that it was found by.
    """
    state, orders = (x.get_secret_value() for x in (testbed.direct.database_url, testbed.direct.orders_url))
    async with open_loader(state, orders, tolerances, timedelta(seconds=30)) as loader:
        ledgers = await read_ledgers(testbed.simulators.url, await loader.now())
        ledgers = _without_duplicates(ledgers, testbed.proxies["services"].duplicated)
        runs = await read_runs(testbed.client, await loader.now())
        if runs_of is not None:
            runs = replace(runs, by_task={t: found for t, found in runs.by_task.items() if t in runs_of})
        replies = SubmissionReplies.of(answers)
        return await audit(loader, None, ledgers, runs=runs, replies=replies, caps=caps), ledgers


def _without_duplicates(ledgers: Ledgers, duplicated: Counter[tuple[str, str]]) -> Ledgers:
    """The ledgers with the calls and probes marked that a proxy made out of others: no budget was spent on those."""
    left = Counter(duplicated)

    def marked(method: str, calls: Sequence[Call]) -> list[Call]:
        found = []
        for call in calls:
            twin = left[method, call.key] > 0
            left[method, call.key] -= twin
            found.append(call.model_copy(update={"duplicate": call.duplicate or twin}))
        return found

    def without(ledger: Ledger) -> Ledger:
        return ledger.model_copy(update={"calls": marked("POST", ledger.calls), "probes": marked("GET", ledger.probes)})

    by_task = {t: {s: without(ledger) for s, ledger in found.items()} for t, found in ledgers.by_task.items()}
    return replace(ledgers, by_task=by_task)
