"""Invariants that the submitters' own log bears witness to: what they sent, and what they were told."""

from __future__ import annotations

from collections.abc import Iterator

from audit.task_record import Picture

_MAY_BE_TAKEN = ("accepted", "unreachable")


def task_was_submitted(picture: Picture) -> Iterator[str]:
    """No task is there that nobody submitted with that content."""
    if picture.answers is not None and not any(a.digest == picture.task.record_digest for a in picture.answers):
        yield f"nobody submitted it with the digest {picture.task.record_digest[:12]}"


def refused_submission_wrote_nothing(picture: Picture) -> Iterator[str]:
    """A submission that was never answered otherwise than by a refusal has no task."""
    verdicts = sorted({a.verdict for a in picture.answers or ()})
    if verdicts and not set(verdicts) & set(_MAY_BE_TAKEN):
        yield f"it is there, although its submitter was told nothing but: {', '.join(verdicts)}"


def same_submission_gets_the_same_answer(picture: Picture) -> Iterator[str]:
    """What is accepted stays accepted, as the same task; other content never is."""
    taken = {a.digest for a in picture.answers or () if a.verdict == "accepted"}
    if taken - {picture.task.record_digest}:
        yield f"accepted with another digest than {picture.task.record_digest[:12]}: {sorted(taken)}"
    for answer in picture.answers or ():
        if answer.verdict == "conflict" and answer.digest == picture.task.record_digest:
            yield "its own content was called a conflict"
    if (n := sum(a.new for a in picture.answers or ())) > 1:
        yield f"it was accepted as new {n} times"


def acknowledged_task_is_whole(picture: Picture) -> Iterator[str]:
    """What was accepted is confirmed, and has its business record, with that content."""
    if not any(a.verdict == "accepted" for a in picture.answers or ()):
        return
    if not picture.task.confirmed:
        yield "its submission was accepted, and is not confirmed"
    if picture.digest != picture.task.record_digest:
        yield "its submission was accepted, and there is no business record of it"


def contradiction_is_kept_apart(picture: Picture) -> Iterator[str]:
    """Every conflict that was answered is a dead letter with an alert, one for each content."""
    answered = len({a.digest for a in picture.answers or () if a.verdict == "conflict"})
    kept = sum(a.kind == "dead_letter" for a in picture.alerts)
    if kept < answered:
        yield f"{answered} conflicts were answered, {kept} dead letters have an alert"


CHECKS = (
    task_was_submitted,
    refused_submission_wrote_nothing,
    same_submission_gets_the_same_answer,
    acknowledged_task_is_whole,
    contradiction_is_kept_apart,
)
