"""What a definition says of a step of one task, as work for its Agent: pure, and the same in every replay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from activities.agents import catalogue
from domain.attempts import AttemptRef, BeginStep, RunInput, StepWork, UndoCall, UndoView
from domain.definition import Definition, Step, Undo
from domain.ids import idempotency_keys
from domain.messages import Json, StepRequest
from domain.text import clean_json

MOST_REQUEST_BYTES = 240_000
"""Bound on what a step asks of its Agent: with an answer each, 100 of them stay within what one history may hold."""


class StepInterpreter:
    """The functions of one definition, applied to one task. Whatever they raise is a fault of the definition."""

    def __init__(self, run: RunInput, definition: Definition) -> None:
        self._run, self._definition = run, definition
        self._key_generations = {s.name: s.key_generation for s in run.steps}
        self._record: Any = None
        self.attempt = AttemptRef(task_id=run.task_id, epoch=run.epoch, nonce=run.nonce, undo=run.undo)

    def work(self, step: Step, results: Mapping[str, Json]) -> StepWork:
        """A step that is to be done."""
        if self._record is None:
            self._check()
            self._record = self._definition.record.model_validate(self._run.record)
        body = _body(step.action, step.request(self._record, results))
        follower = self._definition.follower(step)
        return self._work(
            self._request(step.name, step.action, body),
            begin=self._begin(step),
            then=self._try_begin(follower) if follower else None,
            on_refused=self._definition.refused(step),
        )

    def undo_work(self, entry: UndoView, following: UndoView | None) -> StepWork:
        """An entry of the compensation log that is to be undone, and the one that is undone next."""
        then = self._definition.find(following.step) if following else None
        return self._work(
            self._request(entry.step, entry.action, {}, entry.generation),
            begin=_undo_begin(self._definition.step(entry.step), entry),
            then=_undo_begin(then, following) if then and following else None,
        )

    def _work(self, request: StepRequest, **terms: Any) -> StepWork:
        return StepWork(**dict(self.attempt), step=request.step, request=request, **terms)

    def _check(self) -> None:
        """The task has the steps that its definition has: nobody has changed that since it was released."""
        if changed := self._key_generations.keys() ^ {s.name for s in self._definition.steps}:
            raise LookupError(f"the task and its definition differ in step {', '.join(sorted(changed))}")

    def _begin(self, step: Step) -> BeginStep:
        undo = self._undo_call(step.undo) if step.undo else None
        within_s = step.within.total_seconds()
        return BeginStep(step=step.name, within_s=within_s, calls=step.calls, queued=step.queue is not None, undo=undo)

    def _undo_call(self, undo: Undo) -> UndoCall:
        return UndoCall(action=undo.action, body=_body(undo.action, undo.request(self._record)) if undo.request else {})

    def _try_begin(self, step: Step) -> BeginStep | None:
        """Terms of the step behind this one; None if its definition fails, which is a fault when its turn comes."""
        try:
            return self._begin(step)
        except Exception:
            return None

    def _request(self, step: str, action: str, body: Json, generation: int = 0) -> StepRequest:
        return StepRequest(
            task_id=self._run.task_id,
            step=step,
            action=action,
            body=body,
            keys=idempotency_keys(self._run.task_id, step, self._key_generations[step]),
            epoch=self._run.epoch,
            undo=self._run.undo,
            generation=generation,
        )


def _undo_begin(step: Step, entry: UndoView) -> BeginStep:
    undo = catalogue().get(entry.action)
    return BeginStep(
        step=step.name,
        within_s=step.within.total_seconds(),
        calls=step.undo.calls if step.undo else 1,
        queued=step.queue is not None,
        original=undo is not None and undo.original is not None,
    )


def _body(action: str, made: BaseModel) -> Json:
    """The request that a definition's function made, if its Agent can take it."""
    json.dumps(made.model_dump(), allow_nan=False, default=str)  # as JSON, pydantic makes NaN a null
    body = made.model_dump(mode="json")
    size = len(json.dumps(body, ensure_ascii=False).encode())
    if size > MOST_REQUEST_BYTES:
        raise ValueError(f"the request has {size} bytes; {MOST_REQUEST_BYTES} are the most")
    if clean_json(body) != body:
        raise ValueError("the request holds a NUL, or half a surrogate pair")
    if (model := catalogue()[action].request) is not None:
        model.model_validate(body)
    return body
