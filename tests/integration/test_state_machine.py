"""The state machine in the database: what `domain/states.py` does not list is refused, also from psql."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection
from psycopg.types.json import Jsonb

from devstack.servers.postgres import EmbeddedPostgres
from domain.states import STEP_TRANSITIONS, TASK_TRANSITIONS, EventKind, StepState, TaskState, is_legal
from tests.moves import may_step

DOCUMENT = Path(__file__).parents[2] / "docs" / "state-machine.md"
HELD = {TaskState.PROCESSING}


@pytest.fixture(scope="module")
def shared(templates: EmbeddedPostgres) -> Iterator[str]:
    """One database for all tests here: each rolls back what it did."""
    name = f"machine_{uuid4().hex[:10]}"
    with psycopg.connect(templates.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE state_template")
        yield templates.dsn(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def owner(shared: str) -> Iterator[Connection[Any]]:
    """A transaction as the tables' owner: triggers hold for it too."""
    with psycopg.connect(shared) as connection:
        yield connection
        connection.rollback()


def put(owner: Connection[Any], state: TaskState, *, held: bool | None = None) -> None:
    """Put a task with one step and one event into a state, past the triggers; those are on again afterwards."""
    held = state in HELD if held is None else held
    owner.execute("SET LOCAL session_replication_role = replica")
    owner.execute(
        "INSERT INTO task (task_id, definition, version, state, confirmed, record_digest, submitter, data_class, epoch,"
        " last_event, locked_by, complete_by) VALUES"
        " ('t', 'order', 1, %s, true, 'digest', 'test', 'internal', 1, 1, %s, clock_timestamp() + %s::interval)",
        (state, "order/t/1" if held else None, "1 minute" if held else None),
    )
    owner.execute(
        "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)"
        " VALUES ('t', 1, 'submitted', %s, 1, 'test', '{}')",
        (state,),
    )
    owner.execute("SET LOCAL session_replication_role = origin")


def put_step(owner: Connection[Any], state: StepState) -> None:
    """Put a step into a state."""
    owner.execute(
        "INSERT INTO step (task_id, name, position, service, state, budget, budget_left, undo_budget, undo_budget_left,"
        " complete_by) VALUES ('t', 's', 0, 'stock', %s, 9, 9, 30, 30, clock_timestamp())",
        (state,),
    )


def move(
    owner: Connection[Any], before: TaskState, after: TaskState, kind: EventKind = EventKind.NOTED, **columns: Any
) -> None:
    """Change a task's state as every transition does: with its hold, its epoch and one event; check at once."""
    claim = after in HELD and before not in HELD
    holder = "order/t/2" if claim else "order/t/1"
    values: dict[str, Any] = {
        "state": after,
        "locked_by": holder if after in HELD else None,
        "epoch": 2 if claim else 1,
        "last_event": 2,
        **columns,
    }
    values["complete_by"] = "2100-01-01T00:00:00Z" if values["locked_by"] else None
    append(owner, 2, after, values["epoch"], before=before, kind=kind)
    assignments = ", ".join(f"{c} = %({c})s" for c in values)
    owner.execute(f"UPDATE task SET {assignments} WHERE task_id = 't'", values)  # noqa: S608 (our own column names)
    owner.execute("SET CONSTRAINTS ALL IMMEDIATE")


def append(
    owner: Connection[Any],
    number: int,
    after: TaskState,
    epoch: int = 1,
    *,
    before: TaskState | None = None,
    kind: EventKind = EventKind.NOTED,
) -> None:
    """Append an event."""
    owner.execute(
        "INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)"
        " VALUES ('t', %s, %s, %s, %s, %s, 'test', %s)",
        (number, kind, before or after, after, epoch, Jsonb({})),
    )


def refusal(error: pytest.ExceptionInfo[psycopg.Error]) -> str | None:
    """The rule by whose name the database refused."""
    return error.value.diag.constraint_name


# --- states ---------------------------------------------------------------------------------------------------


@pytest.mark.failure(59)
@pytest.mark.demand("B1", "B11", "F8")
@pytest.mark.parametrize(("before", "after"), list(product(TaskState, TaskState)), ids=str)
def test_database_allows_exactly_the_listed_task_transitions(
    owner: Connection[Any], before: TaskState, after: TaskState
) -> None:
    put(owner, before)
    for kind in EventKind:
        owner.execute("SAVEPOINT here")
        if is_legal(kind, before, after):
            move(owner, before, after, kind)
        else:
            with pytest.raises(psycopg.errors.CheckViolation) as error:
                move(owner, before, after, kind)
            assert refusal(error) == "task_transition_is_legal", kind
        owner.execute("ROLLBACK TO here")


@pytest.mark.demand("B1", "C12")
@pytest.mark.parametrize("kind", EventKind, ids=str)
def test_first_event_of_a_task_says_that_it_was_submitted(owner: Connection[Any], kind: EventKind) -> None:
    columns = "task_id, number, kind, state_to, epoch, actor, detail"
    first = f"INSERT INTO event ({columns}) VALUES ('t', 1, %s, %s, 0, 'test', '{{}}')"  # noqa: S608 (ours)
    for state in TaskState:
        owner.execute("SAVEPOINT here")
        if is_legal(kind, None, state):
            owner.execute(first, (kind, state))
        else:
            with pytest.raises(psycopg.errors.CheckViolation):
                owner.execute(first, (kind, state))
        owner.execute("ROLLBACK TO here")


@pytest.mark.failure(59)
@pytest.mark.demand("B4", "F8")
@pytest.mark.parametrize(("before", "after"), list(product(StepState, StepState)), ids=str)
def test_database_allows_exactly_the_listed_step_transitions(
    owner: Connection[Any], before: StepState, after: StepState
) -> None:
    put(owner, TaskState.PROCESSING)
    put_step(owner, before)
    statement = "UPDATE step SET state = %s WHERE task_id = 't'"
    if may_step(before, after):
        owner.execute(statement, (after,))
        return
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(statement, (after,))
    assert refusal(error) == "step_transition_is_legal"


@pytest.mark.parametrize("column", ["state", "kind"])
def test_word_that_is_no_state_is_refused(owner: Connection[Any], column: str) -> None:
    put(owner, TaskState.PENDING)
    statements = {
        "state": "UPDATE task SET state = 'Done' WHERE task_id = 't'",
        "kind": "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)"
        " VALUES ('t', 2, 'done', 'Pending', 1, 'x', '{}')",
    }
    with pytest.raises(psycopg.errors.CheckViolation):
        owner.execute(statements[column])


# --- a transition and its event -------------------------------------------------------------------------------


@pytest.mark.failure(59)
@pytest.mark.demand("C12")
def test_transition_without_its_event_is_refused_at_commit(owner: Connection[Any]) -> None:
    put(owner, TaskState.PENDING)
    owner.execute("UPDATE task SET state = 'Compensating', last_event = 2 WHERE task_id = 't'")
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.commit()
    assert refusal(error) == "transition_has_one_event"


@pytest.mark.demand("C12")
def test_event_that_tells_of_another_state_than_the_rows_is_refused(owner: Connection[Any]) -> None:
    put(owner, TaskState.PENDING)
    append(owner, 2, TaskState.PROCESSING, before=TaskState.PENDING, kind=EventKind.CLAIMED)
    owner.execute("UPDATE task SET state = 'Compensating', last_event = 2 WHERE task_id = 't'")
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert refusal(error) == "transition_has_one_event"


@pytest.mark.demand("C12")
def test_event_that_tells_of_another_beginning_than_the_rows_is_refused(owner: Connection[Any]) -> None:
    """Each is legal by itself; but the task was Processed, and nothing leads on from there but undo."""
    put(owner, TaskState.PROCESSED)
    append(owner, 2, TaskState.COMPENSATED, before=TaskState.COMPENSATING, kind=EventKind.COMPENSATED)
    owner.execute("UPDATE task SET state = 'Compensated', last_event = 2 WHERE task_id = 't'")
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.commit()
    assert refusal(error) == "transition_has_one_event"


@pytest.mark.demand("C12")
@pytest.mark.parametrize("number", [-1, 0, 2, 3])
def test_event_without_a_transition_is_refused(owner: Connection[Any], number: int) -> None:
    put(owner, TaskState.PENDING)
    owner.execute("SET CONSTRAINTS ALL IMMEDIATE")
    with pytest.raises(psycopg.errors.CheckViolation):
        append(owner, number, TaskState.PENDING)


@pytest.mark.demand("C12")
@pytest.mark.parametrize("columns", ["finished_at = clock_timestamp()", "changed = 9", "started_at = now()"])
def test_sweep_of_the_past_is_not_changed(owner: Connection[Any], columns: str) -> None:
    owner.execute("INSERT INTO sweep (finished_at) VALUES (clock_timestamp())")
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE sweep SET {columns}")  # noqa: S608 (literals)
    assert refusal(error) == "past_sweeps_are_not_changed"


@pytest.mark.parametrize("number", [0, 1, 3])
def test_event_numbers_have_no_gap_and_are_not_used_twice(owner: Connection[Any], number: int) -> None:
    put(owner, TaskState.PENDING)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute("UPDATE task SET updated_at = clock_timestamp(), last_event = %s", (number,))
    assert refusal(error) == "transition_has_one_event"


def test_task_is_not_changed_without_a_transition(owner: Connection[Any]) -> None:
    put(owner, TaskState.PENDING)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute("UPDATE task SET not_before = clock_timestamp() WHERE task_id = 't'")
    assert refusal(error) == "transition_has_one_event"


@pytest.mark.parametrize("column", ["actor = 'somebody'", "detail = '{}'", "number = 7", "state_to = 'Error'"])
def test_event_is_never_changed(owner: Connection[Any], column: str) -> None:
    put(owner, TaskState.PENDING)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE event SET {column} WHERE task_id = 't'")  # noqa: S608 (a literal of this test)
    assert refusal(error) == "events_are_append_only"


def test_event_is_not_removed_while_its_task_is_there(owner: Connection[Any]) -> None:
    put(owner, TaskState.PENDING)
    owner.execute("DELETE FROM event WHERE task_id = 't'")
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert refusal(error) == "events_are_append_only"


@pytest.mark.demand("G4")
@pytest.mark.parametrize("statement", ["UPDATE service_event SET cause = 'another'", "DELETE FROM service_event"])
def test_what_a_breaker_did_is_never_changed_or_removed(owner: Connection[Any], statement: str) -> None:
    owner.execute(
        "INSERT INTO service_event (service, kind, state_from, state_to) VALUES ('stock', 'opened', 'closed', 'open')"
    )
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(statement)
    assert refusal(error) == "service_events_are_append_only"


# --- holds ----------------------------------------------------------------------------------------------------


@pytest.mark.demand("B1")
@pytest.mark.parametrize(
    ("before", "held", "columns"),
    [
        (TaskState.PENDING, False, {"epoch": 2}),
        (TaskState.PROCESSING, True, {"state": "Processing", "locked_by": "order/t/1", "epoch": 2}),
        (TaskState.PROCESSING, True, {"state": "Processing", "locked_by": "order/t/2", "epoch": 1}),
        (TaskState.PENDING, False, {"state": "Processing", "locked_by": "order/t/1", "epoch": 1}),
        (TaskState.PENDING, False, {"state": "Processing", "locked_by": "order/t/3", "epoch": 3}),
        (TaskState.PROCESSING, True, {"epoch": 0}),
        (TaskState.COMPENSATING, False, {"state": "Compensating", "locked_by": "order/t/1", "epoch": 1}),
    ],
    ids=[
        "raised without a claim",
        "raised while held",
        "another holder without a claim",
        "claim that does not raise it",
        "raised by two",
        "lowered",
        "undo claim that does not raise it",
    ],
)
def test_every_claim_raises_the_epoch_by_one_and_nothing_else_does(
    owner: Connection[Any], before: TaskState, held: bool, columns: dict[str, Any]
) -> None:
    put(owner, before, held=held)
    after = TaskState(columns.get("state", before))
    kind = EventKind.NOTED if before is after else EventKind.CLAIMED
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        move(owner, before, after, kind, **columns)
    assert refusal(error) == "claim_raises_epoch"


@pytest.mark.demand("B3")
@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ("locked_by = NULL", "held_exactly_while_it_has_a_deadline"),
        ("complete_by = NULL", "held_exactly_while_it_has_a_deadline"),
        ("locked_by = NULL, complete_by = NULL", "held_only_while_at_work"),
        ("locked_by = NULL, complete_by = NULL, run_id = 'r', state = 'Pending'", "run_only_while_held"),
        ("state = 'Processed'", "held_only_while_at_work"),
        ("failure_count = -1", "counts_are_not_negative"),
    ],
)
def test_task_is_held_exactly_while_it_has_a_deadline(owner: Connection[Any], columns: str, rule: str) -> None:
    put(owner, TaskState.PROCESSING)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE task SET last_event = 2, {columns} WHERE task_id = 't'")  # noqa: S608 (literals)
    assert refusal(error) == rule


@pytest.mark.parametrize(
    "column",
    [
        "confirmed = false",
        "task_id = 'u'",
        "definition = 'other'",
        "version = 2",
        "record_digest = 'x'",
        "created_at = now()",
    ],
)
def test_identity_of_a_task_is_fixed(owner: Connection[Any], column: str) -> None:
    put(owner, TaskState.PENDING)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE task SET last_event = 2, {column} WHERE task_id = 't'")  # noqa: S608 (literals)
    assert refusal(error) == "task_identity_is_fixed"


@pytest.mark.parametrize(
    ("after", "kind", "moves"),
    [(TaskState.PROCESSED, EventKind.PROCESSED, True), (TaskState.PROCESSING, EventKind.ADVANCED, False)],
    ids=["another state", "the same state"],
)
def test_database_stamps_the_writing_of_a_task_and_its_state(
    owner: Connection[Any], after: TaskState, kind: EventKind, moves: bool
) -> None:
    put(owner, TaskState.PROCESSING)
    (before,) = owner.execute("SELECT state_since FROM task").fetchall()
    move(owner, TaskState.PROCESSING, after, kind, updated_at="2001-01-01T00:00:00Z")
    (found,) = owner.execute("SELECT state_since, updated_at, clock_timestamp() - updated_at FROM task").fetchall()
    assert found[2] < timedelta(minutes=1)
    assert found[0] == (found[1] if moves else before[0])


@pytest.mark.failure(57)
@pytest.mark.demand("A6")
@pytest.mark.parametrize("state", TaskState, ids=str)
def test_task_whose_submission_was_finished_is_never_removed(owner: Connection[Any], state: TaskState) -> None:
    put(owner, state)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute("DELETE FROM task WHERE task_id = 't'")
    assert refusal(error) == "only_unconfirmed_is_removed"


UNCONFIRMED = (
    "INSERT INTO task (task_id, definition, version, state, record_digest, submitter, data_class, last_event)"
    " VALUES ('t', 'order', 1, 'Pending', 'd', 's', 'c', 1)"
)


@pytest.mark.demand("A6")
def test_submission_that_is_not_confirmed_may_be_removed(owner: Connection[Any]) -> None:
    owner.execute(UNCONFIRMED)
    assert owner.execute("DELETE FROM task WHERE task_id = 't'").rowcount == 1


@pytest.mark.demand("A6")
@pytest.mark.parametrize(
    "columns",
    [
        "state = 'Processing', epoch = 1, locked_by = 'order/t/1', complete_by = clock_timestamp()",
        "state = 'Compensating'",
        "not_before = clock_timestamp()",
    ],
)
def test_nothing_happens_to_a_submission_before_it_is_confirmed(owner: Connection[Any], columns: str) -> None:
    owner.execute(UNCONFIRMED)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE task SET last_event = 2, {columns} WHERE task_id = 't'")  # noqa: S608 (literals)
    assert refusal(error) == "unconfirmed_until_anything_happens"


@pytest.mark.demand("A5")
@pytest.mark.parametrize(
    "columns",
    [("epoch", 1), ("failure_count", 1), ("last_event", 2), ("state", "Error"), ("confirmed", True)],
    ids=str,
)
def test_new_task_is_pending_without_a_past(owner: Connection[Any], columns: tuple[str, Any]) -> None:
    values = {"state": "Pending", "confirmed": False, "epoch": 0, "failure_count": 0, "last_event": 1}
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(
            "INSERT INTO task (task_id, definition, version, record_digest, submitter, data_class,"
            " state, confirmed, epoch, failure_count, last_event) VALUES ('t', 'order', 1, 'd', 's', 'c',"
            " %(state)s, %(confirmed)s, %(epoch)s, %(failure_count)s, %(last_event)s)",
            values | dict([columns]),
        )
    assert refusal(error) == "task_starts_pending"


# --- steps ----------------------------------------------------------------------------------------------------


@pytest.mark.demand("E3", "E4")
@pytest.mark.parametrize(
    ("columns", "rule"),
    [
        ("budget_left = -1", "budget_is_not_overdrawn"),
        ("budget_left = budget + 1", "budget_is_not_overdrawn"),
        ("undo_budget_left = -1", "undo_budget_is_not_overdrawn"),
        ("undo_budget_left = undo_budget + 1", "undo_budget_is_not_overdrawn"),
        ("state = 'Running', complete_by = NULL", "running_step_has_a_deadline"),
    ],
)
def test_step_keeps_its_budgets_and_its_deadline(owner: Connection[Any], columns: str, rule: str) -> None:
    put(owner, TaskState.PROCESSING)
    put_step(owner, StepState.NOT_STARTED)
    with pytest.raises(psycopg.errors.CheckViolation) as error:
        owner.execute(f"UPDATE step SET {columns} WHERE task_id = 't'")  # noqa: S608 (literals)
    assert refusal(error) == rule


@pytest.mark.demand("F2", "F3")
def test_step_is_logged_for_undo_only_once(owner: Connection[Any]) -> None:
    put(owner, TaskState.PROCESSING)
    entry = "INSERT INTO compensation (task_id, seq, step, action, request) VALUES ('t', %s, 's', 'a.b', '{}')"
    owner.execute(entry, (1,))
    with pytest.raises(psycopg.errors.UniqueViolation) as error:
        owner.execute(entry, (2,))
    assert refusal(error) == "step_is_logged_once"


# --- the drawing ----------------------------------------------------------------------------------------------


def drawing() -> str:
    """The state machine of a task, drawn from the table in `domain/states.py`."""
    arrows = [f"    {a} --> {b}: {', '.join(sorted(kinds))}" for (a, b), kinds in TASK_TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> Pending: submitted", *arrows, "    Compensated --> [*]"])


def step_drawing() -> str:
    """The state machine of a step."""
    order = {s: n for n, s in enumerate(StepState)}
    pairs = sorted(STEP_TRANSITIONS, key=lambda pair: (order[pair[0]], order[pair[1]]))
    return "\n".join(["stateDiagram-v2", "    [*] --> NotStarted", *(f"    {a} --> {b}" for a, b in pairs)])


def test_document_draws_the_machine_that_the_code_has() -> None:
    blocks = re.findall(r"```mermaid\n(.*?)\n```", DOCUMENT.read_text(), re.DOTALL)
    assert blocks == [drawing(), step_drawing()]


def test_document_says_what_each_state_means() -> None:
    described = re.findall(r"^\| `(\w+)` \| .{20,}$", DOCUMENT.read_text(), re.MULTILINE)
    assert described == [*TaskState, *StepState]
