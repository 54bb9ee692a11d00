"""What the event log shows of the steps: it adds up to their rows, answers and budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from audit.task import AuditedTask
from domain.faults import DEFINITION_ERROR, KEY_FORGOTTEN
from domain.states import EventKind, StepState

_K = EventKind
_COSTS_NOTHING = frozenset({_K.SUBMITTED, _K.CONFIRMED, _K.CLAIMED, _K.ADVANCED, _K.NOTED})
_UNFINISHED = frozenset({StepState.NOT_STARTED, StepState.RUNNING, StepState.FAILED})


def events_fold_to_the_steps(task: AuditedTask) -> Iterator[str]:
    """Every transition has exactly one event: that a step began, was Completed, or was Undone, and back."""
    said = {(word, e.detail.get(word)) for e in task.events for word in ("began", "completed", "undone")}
    for step in task.steps:
        if step.has_begun and ("began", step.name) not in said:
            yield f"step {step.name} is {step.state}, no event says that it began"
        if step.state is StepState.COMPLETED and ("completed", step.name) not in said:
            yield f"step {step.name} is Completed, no event says so"
        if step.state in _UNFINISHED and ("completed", step.name) in said:
            yield f"step {step.name} is {step.state}, an event says that it was completed"
        by_hand = task.is_closed_by_hand(step.name)
        if step.state is StepState.UNDONE and not by_hand and ("undone", step.name) not in said:
            yield f"step {step.name} is Undone, no event says so"


def step_failures_have_their_events(task: AuditedTask) -> Iterator[str]:
    """Every failure has its event: no step failed more often; what it did since may have set its count back."""
    said = Counter[str]()
    for event in task.events:
        if event.kind is _K.EXPIRED:
            said.update(event.detail.get("failed") or ())
        elif event.kind in (_K.FAILED, _K.UNDO_FAILED):
            said[str(event.detail.get("step"))] += 1
    for step in task.steps:
        if step.failure_count > said[step.name]:
            yield f"step {step.name} has failed {step.failure_count} times in a row, by its events {said[step.name]}"


def release_before_any_call_costs_nothing(task: AuditedTask) -> Iterator[str]:
    """What certainly sent nothing costs nothing: a task that was only released so spent what its completions say."""
    used, at_work = Counter[str](), set[str]()
    for event in task.events:
        said = event.detail
        if said.get("began") in at_work:  # begun again, what it had reserved before is spent
            return
        if event.kind is _K.RELEASED:
            if said.get("sent") != 0 or said.get("granted"):
                return
            at_work = set()
        elif done := said.get("completed"):
            if said.get("calls") is None:
                return
            used[done] += said["calls"]
        elif event.kind not in _COSTS_NOTHING:
            return
        at_work |= {said["began"]} if "began" in said else set()
    for step in task.steps:
        if not step.reserved and (spent := step.budget - step.budget_left) > used[step.name]:
            yield f"step {step.name} has lost {spent} calls, {used[step.name]} were sent, and nobody failed"


def first_answer_decides_its_step(task: AuditedTask) -> Iterator[str]:
    """Each effect at most once: a step comes to what the first answer to its key says, where that came before its end.

    An answer that nobody waited for may be used by none: its step, or its task, had ended otherwise by then.
    """
    for step in task.steps:
        answer = task.answer_to(step)
        if answer is None:
            continue
        if step.completed_at is not None and answer.received_at < step.completed_at:
            if answer.kind != "completed":
                yield f"step {step.name} was completed, the first answer to {answer.key} had refused it"
            elif answer.result != step.result:
                yield f"step {step.name} was not completed with the first answer to {answer.key}"
        refused_at = _refused_at(task, step.name) if step.state is StepState.FAILED else None
        if refused_at is not None and answer.received_at < refused_at and answer.kind == "completed":
            yield f"step {step.name} has failed, the first answer to {answer.key} had said that it was done"


def steps_begin_in_their_order(task: AuditedTask) -> Iterator[str]:
    """In order: a step begins when all that it comes after are completed, and not before."""
    done: set[str] = set()
    for event in task.events:
        if "completed" in event.detail:
            done.add(event.detail["completed"])
        began = event.detail.get("began") if event.kind is _K.ADVANCED else None
        before = task.definition.after(began) if began and task.definition else ()
        if missing := sorted(set(before) - done):
            yield f"event {event.number}: step {began} began before {', '.join(missing)} was completed"


def no_step_begins_at_an_open_breaker(task: AuditedTask) -> Iterator[str]:
    """While a service's breaker is open no step that needs it begins, nor an undo, but of the task that probes."""
    for event in task.events:
        step = event.detail.get("began")
        undo = event.kind is _K.UNDO_ADVANCED
        service = task.definition.service(step, undo=undo) if step and task.definition else ""
        if task.breakers.was_blocked(service, task.row.task_id, event.at):
            yield f"event {event.number}: {'undo of ' * undo}step {step} began, the breaker of {service} was open"


def _refused_at(task: AuditedTask, step: str) -> datetime | None:
    """When the service's refusal of a step was last recorded; None if the last fault of the step was our own word."""
    faults = [e for e in task.events if e.kind is _K.FAILED and e.detail.get("step") == step]
    return faults[-1].at if faults and faults[-1].detail.get("code") not in (KEY_FORGOTTEN, DEFINITION_ERROR) else None
