"""What happens to a task from outside, one script a scenario of the crash matrix. Each ends where the task must end."""

from __future__ import annotations

from chaos.matrix.case_run import CaseRun
from domain.states import TaskState
from testing.records import MACHINE, ORDER
from testing.waiting import eventually


async def ordered(run: CaseRun) -> None:
    """An order that nothing stands in the way of."""
    await run.submit(ORDER)
    await run.reached(TaskState.PROCESSED)


async def ordered_while_nobody_claims(run: CaseRun) -> None:
    """An order whose claim is the first that is made after it is armed."""
    run.worker.pause()
    await run.submit(ORDER)
    run.arm()
    run.worker.resume()
    await run.reached(TaskState.PROCESSED)


async def cancelled(run: CaseRun) -> None:
    """An order that is undone, by a signal, once it is Processed; somebody dies from the signal on."""
    await ordered(run)
    run.arm()
    await run.signal()
    await run.reached(TaskState.COMPENSATED)


async def cancelled_before_it_began(run: CaseRun) -> None:
    """An order that is to be undone before anything of it was begun."""
    run.worker.pause()
    await run.submit(ORDER)
    await run.ask_undo()
    run.arm()
    run.worker.resume()
    await run.reached(TaskState.COMPENSATED)


async def declined(run: CaseRun) -> None:
    """An order whose card is declined."""
    await run.submit({**ORDER, "card_token": "tok_declined"})
    await run.reached(TaskState.COMPENSATED)


async def out_of_calls(run: CaseRun) -> None:
    """An order whose first attempt spends its allowance of calls, so that the breaker of the service opens."""
    run.fault("stock", "error", times=3, match={"undo": False})
    await ordered(run)


async def out_of_undo_calls(run: CaseRun) -> None:
    """An undo whose first attempt spends its allowance of calls."""
    run.fault("stock", "error", times=run.undo_calls("stock"), match={"undo": True})
    await cancelled(run)


async def not_refunded(run: CaseRun) -> None:
    """An undo that is refused, and asked for again when nothing refuses it any more."""
    await ordered(run)
    run.fault("payments", "refuse", match={"undo": True})
    run.arm()
    await run.ask_undo()
    await run.reached(TaskState.COMPENSATION_FAILED)
    run.heal()
    await run.ask_undo()
    await run.reached(TaskState.COMPENSATED)


async def undo_run_cancelled(run: CaseRun) -> None:
    """An undo whose run is cancelled in Temporal."""
    await ordered(run)
    run.fault("payments", "latency", latency_ms=700, times=1, match={"undo": True})
    await run.ask_undo()
    await run.called("payments", undo=True)
    run.arm()
    await run.cancel_run()
    await run.reached(TaskState.COMPENSATED)


async def drained(run: CaseRun) -> None:
    """An order whose worker is told to stop between two calls."""
    run.fault("stock", "error", retry_after_s=1, times=1)
    await run.submit(ORDER)
    await run.called("stock")
    await run.worker.terminate()
    await run.reached(TaskState.PROCESSED)


async def not_shipped(run: CaseRun) -> None:
    """An order that ends in Error, and is resubmitted."""
    run.fault("shipping", "refuse", match={"undo": False})
    await run.submit(ORDER)
    await run.reached(TaskState.ERROR)
    run.heal()
    await run.process_until_it_ends(RESUBMIT=run.task_id)
    await run.reached(TaskState.PROCESSED)


async def answered_late(run: CaseRun, *, latency_ms: int = 1_000, times: int = 1) -> None:
    """An order whose first call, or so many, is answered when its deadline has passed."""
    run.fault("stock", "latency", latency_ms=latency_ms, times=times)
    await run.submit(ORDER)
    await run.called("stock")
    await run.runner.expire(run.task_id)
    await run.reached(TaskState.PROCESSED)


async def repaired(run: CaseRun) -> None:
    """An undo that is refused, and closed by hand."""
    await ordered(run)
    run.fault("payments", "refuse", match={"undo": True})
    await run.ask_undo()
    await run.reached(TaskState.COMPENSATION_FAILED)
    run.arm()
    await run.process_until_it_ends(REPAIR=f"{run.task_id} charge")
    await run.reached(TaskState.COMPENSATED)


async def breaker_forced(run: CaseRun) -> None:
    """A breaker is opened by hand, and left to itself again."""
    await run.process_until_it_ends(FORCE="mail")
    await ordered(run)


async def submitted(run: CaseRun) -> None:
    """An order whose submitter dies, and comes again."""
    await run.submit_by_process(ORDER)
    await run.reached(TaskState.PROCESSED)


async def abandoned(run: CaseRun) -> None:
    """An order whose submitter dies half way, and comes again only after the housekeeper has seen to its submission."""
    await run.submit_by_process(ORDER, again=run.all_fired)
    await run.reached(TaskState.PROCESSED)


async def record_lost(run: CaseRun) -> None:
    """An order whose business record is lost once it has begun, until a person puts it back."""
    run.fault("stock", "latency", latency_ms=500, times=1)
    await run.submit(ORDER)
    await run.called("stock")
    record = await run.lose_record()
    run.arm()
    await run.runner.expire(run.task_id)
    await run.all_fired()

    async def told() -> bool:  # once an hour, of whichever task
        return "record_missing" in {a.kind for a in await run.testbed.reads.alerts()}

    await eventually(told)
    await run.put_back(record)
    await run.reached(TaskState.PROCESSED)


async def contradicted(run: CaseRun) -> None:
    """An order that is submitted again with other content."""
    await run.submit(ORDER)
    await run.submit_by_process({**ORDER, "currency": "USD"}, expected="DeadLettered")
    await run.reached(TaskState.PROCESSED)


async def made(run: CaseRun) -> None:
    """A machine that nothing stands in the way of."""
    await run.submit(MACHINE, "provisioning")
    await run.reached(TaskState.PROCESSED)


async def name_taken(run: CaseRun) -> None:
    """A machine whose name is taken."""
    run.fault("cloud", "refuse", match={"path": "/cloud/names"})
    await run.submit(MACHINE, "provisioning")
    await run.reached(TaskState.COMPENSATED)


async def worker_starts(run: CaseRun) -> None:
    """A worker that dies while it starts."""
    await run.worker.kill()
    run.arm()
    await run.all_fired()
    await ordered(run)


async def unsupervised(run: CaseRun) -> None:
    """The Supervisor's Schedule is gone."""
    await run.forget_schedule()
    run.arm()
    await run.all_fired()
    await ordered(run)
