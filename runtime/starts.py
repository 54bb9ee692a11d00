"""The start of one run: Temporal takes it, refuses it, or does not answer; what each means for the task."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from domain.attempts import RunInput
from domain.definition import Definition, Registry
from domain.faults import Unreachable
from domain.search_attributes import TASK_ATTEMPT, TASK_DEFINITION, TASK_ID, TASK_SUBMITTER
from runtime.temporal import queue_of
from store.claims import Claim, Claims

log = structlog.get_logger(__name__)

NONCE = "claim"
"""Memo of a run: the nonce of the claim that started it."""

_TASK_ID = SearchAttributeKey.for_keyword(TASK_ID)
_DEFINITION = SearchAttributeKey.for_keyword(TASK_DEFINITION)
_SUBMITTER = SearchAttributeKey.for_keyword(TASK_SUBMITTER)
_ATTEMPT = SearchAttributeKey.for_int(TASK_ATTEMPT)

_ANSWER = timedelta(seconds=5)
PAUSE = timedelta(seconds=1)
"""How long a task waits at first that was not started."""
AT_ONCE = timedelta(0)
_BROOM = timedelta(days=7)

_OUT_OF_REACH = (
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.UNKNOWN,
)
"""No answer: it says nothing of the task. Any other status is a refusal."""

_TO_ALL_ALIKE = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
)
"""Refusals that a person mends for every task at once: no such namespace, no permission, a limit of the server."""

_TOO_LARGE = "larger than max"
_MOST_REFUSALS = 10
_MOST_TO_ALL_ALIKE = 300
"""Refused starts in a row that end a task: after some 8 minutes, or a day where it may not be the task's own fault."""


@dataclass(frozen=True)
class Started:
    """A run that was started."""

    task_id: str
    workflow_id: str
    run_id: str | None


class RunStarter:
    """Starts runs of claimed tasks. What can't be started is given back, so that its task waits and nothing is lost.

    `eager`: ask for the first workflow task with the start; only where a worker runs in this process.
    """

    def __init__(self, client: Client, claims: Claims, registry: Registry, *, eager: bool) -> None:
        self._client, self._claims, self._eager = client, claims, eager
        self._timeouts = {(d.name, d.version): execution_timeout(d) for d in registry}

    async def start(self, claim: Claim, run: RunInput) -> Started | None:
        """Start a run; if it can't be told whether it started, the row is released unless the run has bound itself."""
        try:
            handle = await self._client.start_workflow(
                run.definition,
                run,
                id=claim.locked_by,
                task_queue=queue_of(run.definition, run.version),
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                execution_timeout=self._timeouts[(run.definition, run.version)],
                request_eager_start=self._eager,
                static_summary=f"{'undo of ' if run.undo else ''}{run.definition} {run.task_id}, attempt {run.epoch}",
                search_attributes=_search_attributes(claim),
                memo={NONCE: run.nonce},
                rpc_timeout=_ANSWER,
            )
        except WorkflowAlreadyStartedError:
            return await self._started_before(claim)
        except RPCError as error:
            if error.status in _OUT_OF_REACH:
                raise await self._no_answer(claim, error) from error
            await self._refused(claim, error.message, _most(error))
            return None
        except Exception as error:  # what can't be written, or is too large to be sent: this task's own fault
            await self._refused(claim, repr(error), _MOST_REFUSALS)
            return None
        return Started(run.task_id, claim.locked_by, handle.result_run_id)

    async def _started_before(self, claim: Claim) -> Started | None:
        """There is a run of that id. It is this claim's own only if it knows the claim's nonce; no other is adopted."""
        try:
            run = await self._client.get_workflow_handle(claim.locked_by).describe(rpc_timeout=_ANSWER)
        except RPCError as error:
            raise await self._no_answer(claim, error) from error
        if await run.memo_value(NONCE, None) == claim.task.claim_nonce:
            return Started(claim.task.task_id, claim.locked_by, run.run_id)
        cause = f"run {run.run_id} of {claim.locked_by} was started by somebody else: it is not believed"
        await self.at_fault(claim, "foreign_run", cause, pause=AT_ONCE)
        return None

    async def _no_answer(self, claim: Claim, error: RPCError) -> Unreachable:
        cause = f"Temporal did not start the run: {error.message}"
        await self._claims.not_started(claim, cause, pause=PAUSE)
        return Unreachable(cause)

    async def _refused(self, claim: Claim, reason: str, most: int) -> None:
        cause = f"Temporal refuses to start the run: {reason}"
        await self.at_fault(claim, "start_refused", cause, most=most)

    async def at_fault(
        self,
        claim: Claim,
        fault: str,
        cause: str,
        *,
        alert: str = "",
        pause: timedelta = PAUSE,
        most: int | None = None,
    ) -> None:
        """A fault of this very task: it waits longer and longer, a person is told, and number `most` ends it."""
        log.error(cause, task_id=claim.task.task_id, attempt=claim.locked_by)
        await self._claims.not_started(claim, cause, fault=fault, alert=alert or cause, pause=pause, most=most)


def _most(error: RPCError) -> int:
    """How many such refusals in a row end a task."""
    to_all_alike = error.status in _TO_ALL_ALIKE and _TOO_LARGE not in error.message
    return _MOST_TO_ALL_ALIKE if to_all_alike else _MOST_REFUSALS


def execution_timeout(definition: Definition) -> timedelta:
    """When Temporal sweeps up a run that nobody ended: days after its task's own deadlines, which are the store's."""
    allowances = sum((s.within for s in definition.steps), timedelta(0))
    return 2 * allowances + _BROOM


def _search_attributes(claim: Claim) -> TypedSearchAttributes:
    task = claim.task
    return TypedSearchAttributes(
        [
            SearchAttributePair(_TASK_ID, task.task_id),
            SearchAttributePair(_DEFINITION, task.definition),
            SearchAttributePair(_SUBMITTER, task.submitter),
            SearchAttributePair(_ATTEMPT, task.epoch),
        ]
    )
