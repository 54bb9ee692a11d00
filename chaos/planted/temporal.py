"""Mistakes in what runs at Temporal."""

from __future__ import annotations

from typing import Any

from chaos.planted.bug import CHAOS, Bug
from chaos.planted.patches import Behaviour
from workflows import queued_call
from workflows.undo_requests import Requests


def swallowing_requests(_: Any) -> Any:
    async def hand_on(self: Any) -> None:
        self.first = None

    return hand_on


def naming_activities_anew(real: Any) -> Any:
    def queued_options(step: Any, work: Any, grant: Any) -> Any:
        return {**real(step, work, grant), "activity_id": f"{step.name}-{work.epoch}"}

    return queued_options


TEMPORAL_BUGS = (
    Bug(
        "signal_swallowed",
        "an attempt that is asked for undo by a signal does not pass it on",
        (Behaviour(Requests, "hand_on", swallowing_requests),),
        CHAOS,
        ("undo_that_was_asked_for_is_done",),
    ),
    Bug(
        "changed_without_a_version",
        "the workflow's commands were changed while its runs are open",
        (Behaviour(queued_call, "queued_options", naming_activities_anew),),
        CHAOS,
        ("history_replays",),
    ),
)
