"""Fault rules and the draw that decides which of them hit a call.

Rules live in memory: a process that is started again starts without faults.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from devstack.simulators.messages import Json


class FaultKind(StrEnum):
    """What a rule does to the calls that it hits."""

    LATENCY = "latency"  # wait before handling
    SLOW_START = "slow_start"  # latency that shrinks to nothing over `for_s`
    OUTAGE = "outage"  # cut the connection at once; no effect
    ERROR = "error"  # answer `status`, before or after the effect
    REFUSE = "refuse"  # a permanent refusal, saved under the key like any other
    LOST_REPLY = "lost_reply"  # commit the effect, then cut the connection
    DUPLICATE = "duplicate"  # deliver the request a second time, `latency_ms` after the answer
    CRASH = "crash"  # commit the effect, then die
    AMNESIA = "amnesia"  # as a service that keeps neither tombstones nor fences
    UNFENCED = "unfenced"  # as a service that keeps tombstones, and no fences


_DELAYS = (FaultKind.LATENCY, FaultKind.SLOW_START)
_ASIDE = (*_DELAYS, FaultKind.DUPLICATE, FaultKind.AMNESIA, FaultKind.UNFENCED)  # beside a decisive one
_ANYWHERE = (*_DELAYS, FaultKind.OUTAGE)  # these hit probes as well, without being asked to


class Match(BaseModel):
    """Which calls a rule is for; what is left out matches everything. A trailing `*` makes a prefix."""

    model_config = ConfigDict(extra="forbid")

    task_id: str | None = None
    path: str | None = None
    undo: bool | None = None


class FaultRule(BaseModel):
    """One instruction to fail. `rate` is a probability, `times` the most often it fires, `for_s` its life."""

    model_config = ConfigDict(extra="forbid")

    kind: FaultKind
    rate: float = Field(1.0, ge=0, le=1)
    times: int | None = Field(None, ge=0)
    match: Match = Match()
    latency_ms: int = Field(0, ge=0)
    jitter_ms: int = Field(0, ge=0)
    status: int | None = Field(None, ge=400, le=599)
    retry_after_s: int | None = Field(None, ge=0)
    for_s: float | None = Field(None, gt=0)
    after_effect: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind is FaultKind.SLOW_START and self.for_s is None:
            raise ValueError("slow_start needs for_s")
        if self.kind is FaultKind.REFUSE and self.status is not None and self.status >= 500:
            raise ValueError(f"a refusal is permanent: status {self.status} is not a 4xx")
        return self

    @property
    def answer_status(self) -> int:
        """The status to answer: as given, else 422 for a refusal and 503 for an error."""
        return self.status or (422 if self.kind is FaultKind.REFUSE else 503)


@dataclass(frozen=True)
class Target:
    """The traits of a call that rules match on."""

    path: str
    undo: bool
    task_id: str | None
    probe: bool = False


@dataclass(frozen=True)
class Plan:
    """What will go wrong with one call: a delay, at most one decisive fault, perhaps a second delivery.

    `fenced`, `tombstones`: whether the service keeps those.
    """

    delay_s: float = 0.0
    decisive: FaultRule | None = None
    duplicate: FaultRule | None = None
    fenced: bool = True
    tombstones: bool = True
    kinds: tuple[str, ...] = ()


@dataclass
class _Active:
    id: int
    rule: FaultRule
    since: float
    fired: int = 0
    last_task: str | None = None

    def age_s(self) -> float:
        return time.monotonic() - self.since

    def is_alive(self) -> bool:
        in_time = self.rule.for_s is None or self.age_s() < self.rule.for_s
        return in_time and (self.rule.times is None or self.fired < self.rule.times)


class Injector:
    """The fault rules of one service. The same seed and the same calls give the same draws."""

    def __init__(self, service: str, seed: int) -> None:
        """Starts without rules."""
        self._service = service
        self._seed = seed
        self._next_id = 1
        self.clear(reseed=True)

    def add(self, rule: FaultRule) -> int:
        """Puts a rule in force and returns its id."""
        self._active.append(_Active(self._next_id, rule, time.monotonic()))
        self._next_id += 1
        return self._next_id - 1

    def clear(self, *, reseed: bool = False) -> None:
        """Ends all rules."""
        self._active: list[_Active] = []
        if reseed:
            self._random = random.Random(f"{self._service}/{self._seed}")  # noqa: S311 - faults, no secrets

    def listing(self) -> list[Json]:
        """Returns every rule since the last clear: how often it fired, for which task last, whether it still may."""
        return [
            {"id": active.id, "fired": active.fired, "last_task": active.last_task, "alive": active.is_alive(),
             "rule": active.rule.model_dump(mode="json")}
            for active in self._active
        ]  # fmt: skip

    def is_out(self, target: Target) -> bool:
        """Draws whether an outage hits the call."""
        rules = self._matching(target)
        return any(self._fires(active, target) for active in rules if active.rule.kind is FaultKind.OUTAGE)

    def plan(self, target: Target) -> Plan:
        """Draws what else hits the call. The first decisive rule that fires wins; delays add up."""
        delay_s = 0.0
        decisive: FaultRule | None = None
        duplicate: FaultRule | None = None
        fenced = tombstones = True
        kinds: list[str] = []
        for active in self._matching(target):
            kind = active.rule.kind
            taken = (kind is FaultKind.DUPLICATE and duplicate) or (kind not in _ASIDE and decisive)
            if kind is FaultKind.OUTAGE or taken or not self._fires(active, target):
                continue
            kinds.append(kind.value)
            if kind in _DELAYS:
                delay_s += self._delay_s(active)
            elif kind is FaultKind.DUPLICATE:
                duplicate = active.rule
            elif kind in (FaultKind.AMNESIA, FaultKind.UNFENCED):
                fenced, tombstones = False, tombstones and kind is FaultKind.UNFENCED
            else:
                decisive = active.rule
        return Plan(delay_s, decisive, duplicate, fenced, tombstones, tuple(kinds))

    def _matching(self, target: Target) -> Iterator[_Active]:
        for active in self._active:
            if active.is_alive() and self._matches(active.rule, target):
                yield active

    def _matches(self, rule: FaultRule, target: Target) -> bool:
        match = rule.match
        if target.probe and match.path is None and rule.kind not in _ANYWHERE:
            return False
        short_path = target.path.removeprefix(f"/{self._service}")
        return (
            (match.undo is None or match.undo == target.undo)
            and (match.task_id is None or _fits(match.task_id, target.task_id or ""))
            and (match.path is None or _fits(match.path, target.path) or _fits(match.path, short_path))
        )

    def _fires(self, active: _Active, target: Target) -> bool:
        if self._random.random() >= active.rule.rate:
            return False
        active.fired, active.last_task = active.fired + 1, target.task_id
        return True

    def _delay_s(self, active: _Active) -> float:
        rule = active.rule
        delay_s = (rule.latency_ms + self._random.uniform(0, rule.jitter_ms)) / 1000
        if rule.kind is FaultKind.SLOW_START and rule.for_s is not None:
            delay_s *= max(0.0, 1 - active.age_s() / rule.for_s)
        return delay_s


def _fits(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
