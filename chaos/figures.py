"""What a run with faults counted, and what must have happened for it to say anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from audit.evidence import Ledgers
from audit.run import AuditResult
from chaos.faults import Injector
from chaos.histories import Histories
from chaos.testbed import ChaosTestbed
from chaos.workload import Traffic
from domain.messages import Json
from domain.states import TaskState


@dataclass(frozen=True)
class Guards:
    """What must have happened for a run to say anything.

    Attributes:
        tasks, faults: So many at least. seen: How often each kind of fault must have had a visible effect.
        thorough: Also what a short run may be too small for, and at least these shares of `processed` and
            `compensated` tasks.
    """

    tasks: int
    faults: int
    seen: int
    processed: float = 0.4
    compensated: float = 0.1
    thorough: bool = True


@dataclass
class Figures:
    """Everything that was counted.

    Attributes:
        kinds: By kind of fault, how often it was done, and how often it was seen.
        ends: How often workers ended by themselves, by exit code.
        asked: By the way that undo was asked for, of how many tasks somebody took the request.
        fenced: Calls that a service refused for their token.
        barred: Originals that a service refused after their undo, by what kept them out.
        overtaken: Attempts that a killed or paused worker held, and that the Supervisor took from it.
        zombies: What those attempts still did: calls that were refused, answers that came too late.
    """

    tasks: int = 0
    states: dict[str, int] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    kinds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    replayed: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    opened: int = 0
    fenced: int = 0
    barred: dict[str, int] = field(default_factory=dict)
    tombstones: int = 0
    overtaken: int = 0
    zombies: int = 0
    checks: int = 0
    money: Json = field(default_factory=dict)
    settled_after_s: float = 0.0


def missing(figures: Figures, guards: Guards) -> Iterator[str]:
    """What did not happen, or not often enough, for the run to say anything."""
    if figures.tasks < guards.tasks:
        yield f"{figures.tasks} tasks, at least {guards.tasks} were wanted"
    if figures.faults < guards.faults:
        yield f"{figures.faults} faults, at least {guards.faults} were wanted"
    for state, share in ((TaskState.PROCESSED, guards.processed), (TaskState.COMPENSATED, guards.compensated)):
        ended, wanted = figures.states.get(state, 0), share * figures.tasks if guards.thorough else 1
        if ended < wanted:
            yield f"{ended} tasks are {state}, at least {wanted:.0f} were wanted"
    for kind, (done, seen) in figures.kinds.items():
        if seen < guards.seen:
            yield f"{kind}: done {done} times, seen {seen} times, at least {guards.seen} were wanted"
    counts = {
        "submission was refused for a cap": figures.answers.get("refused", 0),
        "conflict was answered": figures.answers.get("conflict", 0),
    }
    if guards.thorough:
        counts |= {
            "write or call of an attempt that was overtaken was refused": figures.fenced
            + figures.runs.get("Superseded", 0),
            "answer that came too late was kept": figures.events.get("late_answer", 0),
            "call or answer of a killed or paused worker came too late": figures.zombies,
            "original was refused by the fence": figures.barred.get("stale_token", 0),
            "original was refused by a tombstone": figures.barred.get("undone", 0),
            "worker gave a task back when it was told to stop": figures.events.get("released", 0),
            "boundary could not be written": figures.runs.get("NotRecorded", 0),
            "circuit breaker opened": figures.opened,
            **{f"undo was asked for by {way}": figures.asked.get(way, 0) for way in ("store", "signal", "attempt")},
        }
    yield from (f"no {name}" for name, count in counts.items() if not count)


def count(
    figures: Figures,
    testbed: ChaosTestbed,
    traffic: Traffic,
    injector: Injector,
    found: AuditResult,
    histories: Histories,
    ledgers: Ledgers,
) -> None:
    figures.tasks, figures.checks = found.tasks, found.checks
    figures.states = dict(rows(testbed, "SELECT state, count(*) FROM task GROUP BY state ORDER BY 2 DESC"))
    figures.events = dict(rows(testbed, "SELECT kind, count(*) FROM event GROUP BY kind ORDER BY 2 DESC"))
    query = "SELECT count(*) FROM event WHERE kind = 'expired' AND detail ->> 'held_by' = ANY(%s)"
    held = list(injector.holds)
    figures.overtaken = rows(testbed, query, held)[0][0]
    late = "SELECT count(*) FROM event WHERE kind = 'late_answer' AND actor = ANY(%s)"
    figures.zombies = rows(testbed, late, held)[0][0]
    figures.opened = rows(testbed, "SELECT count(*) FROM service_event WHERE kind = 'opened'")[0][0]
    figures.asked = dict(Counter(traffic.asked.values()))
    figures.answers = dict(Counter(a.verdict for a in traffic.answers))
    figures.faults = sum(not s.failed for s in injector.strokes)
    figures.kinds = injector.kinds_seen()
    figures.ends = dict(injector.ends)
    figures.runs, figures.replayed = dict(histories.ends.most_common()), histories.replayed
    calls, barred = Counter[str](), Counter[str]()
    attempts = {tuple(attempt.split("/")[1:]) for attempt in held}
    for task_id, services in ledgers.by_task.items():
        for ledger in services.values():
            undone = {e.key: e.undone_at for e in (*ledger.effects, *ledger.tombstones) if e.undone_at}
            figures.tombstones += len(ledger.tombstones)
            calls.update(c.outcome for c in ledger.calls)
            calls["probe"] += len(ledger.probes)
            for call in (c for c in ledger.calls if c.outcome in ("stale_token", "undone")):
                figures.zombies += (task_id, str(call.token)) in attempts
                undone_at = undone.get(call.key)
                barred[call.outcome] += bool(undone_at and call.decided_at and call.decided_at > undone_at)
    figures.calls, figures.fenced, figures.barred = dict(calls.most_common()), calls["stale_token"], dict(barred)


def rows(testbed: ChaosTestbed, query: str, *params: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(testbed.owner) as connection:
        return connection.execute(query, params).fetchall()
