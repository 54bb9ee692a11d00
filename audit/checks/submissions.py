"""What the submitters' own log can show: what they sent, and what they were told."""

from __future__ import annotations

from collections.abc import Iterator

from audit.task import AuditedTask


def task_was_submitted(task: AuditedTask) -> Iterator[str]:
    """Nothing lost or made up: somebody submitted each task, with that content."""
    if task.replies is not None and not any(r.digest == task.row.record_digest for r in task.replies):
        yield f"nobody submitted it with the digest {task.row.record_digest[:12]}"


def refused_submission_wrote_nothing(task: AuditedTask) -> Iterator[str]:
    """Refused means that nothing was written: a submission that had no other reply has no task."""
    verdicts = sorted({r.verdict for r in task.replies or ()})
    if verdicts and not {"accepted", "unreachable"} & set(verdicts):
        yield f"it is there, although its submitter was told nothing but: {', '.join(verdicts)}"


def same_submission_gets_the_same_answer(task: AuditedTask) -> Iterator[str]:
    """An existing record is accepted only if its digest matches: what is accepted stays so, other content never is."""
    accepted = {r.digest for r in task.replies or () if r.verdict == "accepted"}
    if accepted - {task.row.record_digest}:
        yield f"accepted with another digest than {task.row.record_digest[:12]}: {sorted(accepted)}"
    for reply in task.replies or ():
        if reply.verdict == "conflict" and reply.digest == task.row.record_digest:
            yield "its own content was called a conflict"
    if (n := sum(r.new for r in task.replies or ())) > 1:
        yield f"it was accepted as new {n} times"


def acknowledged_task_is_whole(task: AuditedTask) -> Iterator[str]:
    """Nothing acknowledged is lost: the task is confirmed, and has its business record, with that content."""
    if not any(r.verdict == "accepted" for r in task.replies or ()):
        return
    if not task.row.confirmed:
        yield "its submission was accepted, and is not confirmed"
    if task.digest != task.row.record_digest:
        yield "its submission was accepted, and there is no business record of it"


def contradiction_is_kept_apart(task: AuditedTask) -> Iterator[str]:
    """A conflict is one dead letter and one alert, however often it is redelivered."""
    conflicts = len({r.digest for r in task.replies or () if r.verdict == "conflict"})
    kept = sum(a.kind == "dead_letter" for a in task.alerts)
    if kept < conflicts:
        yield f"{conflicts} conflicts were answered, {kept} dead letters have an alert"
