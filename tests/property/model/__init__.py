"""One task in plain Python: what design and documents say a state store does, without SQL, connections or clocks.

A writer changes the task as it may, and returns what it is told. A deadline is still to come, or has passed (`late`,
`overdue`); whoever moves time says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.property.model.admission import (
    breaker,
    claim,
    late_answer,
    let_go,
    not_started,
    submit,
    tidy,
    time_passes,
    write_record,
)
from tests.property.model.people import repair_undo, request_undo, resubmit
from tests.property.model.rows import Told
from tests.property.model.run import advance, fail, give_up, release, undo_advance, undo_fail
from tests.property.model.supervisor import recover
from tests.property.model.task import Task

_INTAKE = (submit, write_record, tidy, claim, not_started, time_passes, breaker, late_answer, let_go)
_RUN = (advance, undo_advance, fail, undo_fail, give_up, release)
_OTHERS = (request_undo, resubmit, repair_undo, recover)
WRITERS: dict[str, Callable[..., Told]] = {w.__name__: w for w in (*_INTAKE, *_RUN, *_OTHERS)}
"""Everybody who may write, by name."""


class Write(NamedTuple):
    """A writer by name, with its terms."""

    name: str
    terms: dict[str, Any]

    def on(self, task: Task) -> Told:
        """Let it change the task of the model."""
        return WRITERS[self.name](task, **self.terms)
