"""One task in the real state store: the same writers as the model's, and the same picture of what is on record."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from domain.attempts import BeginStep, UndoCall, WriteResult
from domain.definition import Definition, Registry
from domain.messages import Json
from domain.states import UndoState
from domain.undo_requests import UndoRequest
from store.admission import Admission, NewTask, Unfinished
from store.breakers import BreakerTerms, CircuitBreakers
from store.claims import Claim, Hold
from store.database import Database, Params, Rows
from store.housekeeping import Housekeeper
from store.orders import Amendment
from store.state_store import StateStore
from store.submission import Submission, SubmissionDesk, digest_of
from store.supervision import Recovery, Supervision
from supervisor.decide import decide
from tests.integration.store_bench import RECORDS, ROOMY, StoreBench
from tests.property.model import Write
from tests.property.model.admission import WORKER
from tests.property.model.people import PERSON
from tests.property.model.rows import Told
from tests.property.model.supervisor import Decision
from tests.property.model.task import KNOWN, SUBMITTER

LONG = timedelta(hours=1)
ERROR = {"message": "never"}
CHANGED = {"order": {"currency": "CHF"}, "provisioning": {"region": "elsewhere"}}
TIME_PASSES = (
    "UPDATE task SET complete_by = clock_timestamp() WHERE task_id = %(id)s AND complete_by > clock_timestamp()",
    "UPDATE task SET not_before = clock_timestamp() WHERE task_id = %(id)s",
    "UPDATE compensation SET quarantined_until = least(quarantined_until, clock_timestamp()) WHERE task_id = %(id)s"
    " AND quarantined_until IS NOT NULL",
    "UPDATE step SET complete_by = clock_timestamp() - interval '1 minute'"
    " WHERE task_id = %(id)s AND name = ANY(%(steps)s)",
)
BREAKER = (
    "INSERT INTO service (name, forced) VALUES (%(service)s, %(forced)s)"
    " ON CONFLICT (name) DO UPDATE SET forced = excluded.forced"
)
PICTURE = """
SELECT
    t.state, t.epoch, t.locked_by, t.run_id, t.failure_count AS failures,
    coalesce(t.complete_by <= clock_timestamp(), false) AS late,
    t.locked_by IS NULL AND t.state IN ('Pending', 'Compensating') AND t.not_before > clock_timestamp() AS waits,
    (SELECT jsonb_object_agg(s.name, jsonb_build_object(
        'state', s.state, 'epoch', s.epoch, 'failures', s.failure_count, 'budget', s.budget,
        'budget_left', s.budget_left, 'undo_budget', s.undo_budget, 'undo_budget_left', s.undo_budget_left,
        'reserved', s.reserved, 'gave_up', s.gave_up, 'unknown', s.outcome_unknown, 'generation', s.key_generation,
        'result', s.result, 'completed', s.completed_at IS NOT NULL,
        'overdue', coalesce(s.complete_by <= clock_timestamp(), false)
    )) FROM step AS s WHERE s.task_id = t.task_id) AS steps,
    (SELECT coalesce(jsonb_agg(jsonb_build_object(
        'step', c.step, 'state', c.state, 'attempts', c.attempts, 'generation', c.generation,
        'quarantined', c.quarantined_until IS NOT NULL,
        'waits', coalesce(c.quarantined_until > clock_timestamp(), false)
    ) ORDER BY c.seq), '[]') FROM compensation AS c WHERE c.task_id = t.task_id) AS log,
    (SELECT jsonb_agg(jsonb_build_array(e.kind, e.state_from, e.state_to, e.epoch, e.actor) ORDER BY e.number)
        FROM event AS e WHERE e.task_id = t.task_id) AS events,
    (SELECT coalesce(jsonb_agg(a.kind ORDER BY a.kind), '[]') FROM alert AS a WHERE a.task_id = t.task_id) AS alerts
FROM task AS t WHERE t.task_id = %(id)s
"""


class Twice:
    """A database whose first acknowledgement of every transaction is lost: all is sent again, as it was."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def transaction(
        self, *statements: tuple[str, Params], **options: Any
    ) -> tuple[Sequence[int], Sequence[Rows]]:
        """As the database's, sent twice."""
        await self._database.transaction(*statements, **options)
        return await self._database.transaction(*statements, **options)

    async def rows(self, statement: str, params: Params | None = None) -> Rows:
        """As the database's: only reads come this way."""
        return await self._database.rows(statement, params)


class StoreUnderTest:
    """The writers, by the names and terms that the model gives them."""

    def __init__(self, bench: StoreBench, task_id: str, definition: Definition) -> None:
        self._bench, self._task_id, self._definition = bench, task_id, definition
        self._claims: dict[str, Claim] = {}
        self._seen: Unfinished | None = None
        self._recoveries: dict[Decision, Recovery] = {}
        self._through(bench.database, bench.supervision)

    def through(self, state: Any, supervisor: Any) -> StoreUnderTest:
        """The same task, written through other connections."""
        twin = copy(self)
        twin._through(state, Supervision(supervisor))
        return twin

    def _through(self, state: Any, supervision: Supervision) -> None:
        self._store = StateStore(state, claim_within=LONG)
        self._breakers = CircuitBreakers(state, BreakerTerms(per_s=0.001))
        self._admission, self._supervision = Admission(state, ROOMY), supervision
        self._desk = SubmissionDesk(self._admission, self._bench.orders, Registry([self._definition]))

    async def do(self, write: Write) -> Told:
        """Let a writer change the task."""
        terms = dict(write.terms)
        if "hold" in terms and terms["hold"].nonce == KNOWN:
            claim = self._claims[terms["hold"].locked_by]
            terms["hold"] = replace(terms["hold"], nonce=claim.task.claim_nonce)
        answer: Told = await getattr(self, write.name)(**terms)
        return answer

    # --- submission and claims --------------------------------------------------------------------------------

    async def admit(self) -> None:
        """The first write of a submission: the state row alone. A housekeeper sees it, and may look after it later."""
        await self._admission.admit(NewTask(self._task_id, self._definition, self._digest, SUBMITTER, None))
        rows = await self._admission.unconfirmed(timedelta(0), 1_000, None)
        self._seen = next(row for row in rows if row.task_id == self._task_id)

    async def submit(self, *, same: bool) -> Told:
        name = self._definition.name
        record = RECORDS[name] | ({} if same else CHANGED[name])
        message = Submission(task_id=self._task_id, definition=name, record=record, submitter=SUBMITTER)
        return Told(type(await self._desk.submit(message)).__name__)

    async def write_record(self) -> Told:
        await self._bench.orders.create(self._task_id, self._definition.name, self._record, self._digest)
        return Told()

    async def tidy(self) -> Told:
        assert self._seen
        await Housekeeper(self._admission, self._bench.orders, timedelta(0)).finish(self._seen)
        return Told()

    async def claim(self) -> Told:
        loaded = [(self._definition.name, self._definition.version)]
        for claim in await self._store.claims.claim(WORKER, loaded, 1_000_000, [self._task_id]):
            self._claims[claim.locked_by] = claim
            return Told(claim.locked_by)
        return Told("nothing")

    async def not_started(self, hold: Hold, *, delay_s: float, most: int | None) -> Told:
        claim, pause = self._claims[hold.locked_by], timedelta(seconds=delay_s)
        fault = None if most is None else "start_refused"
        await self._store.claims.not_started(claim, "no answer", fault=fault, pause=pause, most=most)
        return Told()

    async def time_passes(self, *, steps: list[str]) -> Told:
        for statement in TIME_PASSES:
            self._bench.owner(statement, id=self._task_id, steps=steps)
        return Told()

    async def breaker(self, *, service: str, is_open: bool) -> Told:
        self._bench.owner(BREAKER, service=service, forced="open" if is_open else None)
        return Told()

    async def let_go(self, *, service: str) -> Told:
        await self._breakers.force(service, None, requester=PERSON, reason="it is back")
        return Told("nothing")

    async def late_answer(self, *, actor: str, step: str) -> Told:
        await self._store.steps.note_late(self._task_id, step, {"late": True}, actor=actor)
        return Told()

    # --- a holder ---------------------------------------------------------------------------------------------

    async def advance(
        self,
        hold: Hold,
        *,
        done: str | None = None,
        result: Json | None = None,
        calls: int | None = None,
        begin: str | None = None,
    ) -> Told:
        terms = self._terms(begin) if begin else None
        return _told(await self._store.forward.advance(hold, done=done, result=result, calls=calls, begin=terms))

    async def undo_advance(
        self, hold: Hold, *, done: str | None = None, calls: int | None = None, begin: str | None = None
    ) -> Told:
        terms = self._undo_terms(begin) if begin else None
        return _told(await self._store.undo.advance(hold, done=done, calls=calls, begin=terms))

    async def fail(self, hold: Hold, *, step: str, unknown: bool | None, then: Literal["undo", "error"]) -> Told:
        return _told(await self._store.forward.fail(hold, step, ERROR, unknown=unknown, then=then))

    async def undo_fail(self, hold: Hold, *, step: str) -> Told:
        return _told(await self._store.undo.fail(hold, step, ERROR))

    async def give_up(self, hold: Hold, *, step: str) -> Told:
        return _told(await self._store.steps.give_up(hold, step, "no more calls"))

    async def release(self, hold: Hold, *, step: str | None, sent: int | None, delay_s: float) -> Told:
        delay = timedelta(seconds=delay_s)
        return _told(await self._store.steps.release(hold, "draining", step=step, sent=sent, delay=delay))

    # --- people, and the Supervisor ---------------------------------------------------------------------------

    async def request_undo(self, *, holder: str | None, definition: str | None) -> Told:
        asked = UndoRequest(
            task_id=self._task_id, requester=PERSON, reason="by mistake", holder=holder, definition=definition
        )
        return Told((await self._store.requests.undo(asked)).verdict)

    async def resubmit(self, *, corrected: bool = False) -> Told:
        record = {**RECORDS[self._definition.name], **CHANGED[self._definition.name]}
        amendment = Amendment(self._task_id, record, seen=0, id=f"{self._task_id} by {PERSON}")
        moved, _ = await self._store.requests.resubmit(
            self._task_id,
            requester=PERSON,
            reason="corrected",
            changes=CHANGED[self._definition.name] if corrected else {},
            amend=(lambda: self._bench.orders.amend(amendment)) if corrected else None,
        )
        return Told("yes" if moved else "no")

    async def repair_undo(self, *, step: str, to: UndoState) -> Told:
        moved, _ = await self._store.requests.repair_undo(
            self._task_id, step, to, requester=PERSON, reason="by hand", evidence="receipt"
        )
        return Told("yes" if moved else "no")

    async def decide(self, *, outage: bool) -> Decision:
        """Read the task as the Supervisor does, and decide; the decision can be carried out later."""
        page = await self._supervision.expired(window=LONG, page=1_000, after=(None, ""))
        found = next(t for t in page if t.task_id == self._task_id)
        made = decide(found.model_copy(update={"outage": outage}))
        failed = tuple(made.failed_steps)
        decision = Decision(made.locked_by, made.last_event, made.target, made.delay_s, failed, made.outage)
        self._recoveries[decision] = made
        return decision

    async def recover(self, *, decision: Decision) -> Told:
        evicted = await self._supervision.recover([self._recoveries[decision]])
        return Told("recovered" if evicted else "nothing")

    # --- looking on -------------------------------------------------------------------------------------------

    def picture(self) -> dict[str, Any] | None:
        """Everything on record that the model knows of, as the owner of the database sees it."""
        rows = self._bench.owner(PICTURE, id=self._task_id)
        return {**rows[0], "events": [tuple(e) for e in rows[0]["events"]]} if rows else None

    def wait_is(self, delay_s: float, *, longer: bool) -> None:
        """The task waits for so long, or `longer`; from here on it is due only when `time_passes`."""
        row = self._bench.row(self._task_id)
        waits_s = (row["not_before"] - row["updated_at"]).total_seconds()
        assert delay_s - 0.1 < waits_s < (LONG.total_seconds() * 2 if longer else 1.25 * delay_s + 0.1)
        self._bench.owner(
            "UPDATE task SET not_before = not_before + interval '1 hour' WHERE task_id = %(id)s", id=self._task_id
        )

    @property
    def _record(self) -> Json:
        return self._definition.record.model_validate(RECORDS[self._definition.name]).model_dump(mode="json")

    @property
    def _digest(self) -> str:
        return digest_of(self._definition.name, self._record)

    def _terms(self, step: str) -> BeginStep:
        found = self._definition.step(step)
        undo = UndoCall(action=found.undo.action, body={"undo": step}) if found.undo else None
        return BeginStep(step=step, within_s=LONG.total_seconds(), calls=found.calls, undo=undo)

    def _undo_terms(self, step: str) -> BeginStep:
        undo = self._definition.step(step).undo
        return BeginStep(step=step, within_s=LONG.total_seconds(), calls=undo.calls if undo else 1)


def _told(report: WriteResult) -> Told:
    return Told(report.end, report.grant.calls if report.grant else None, report.result)
