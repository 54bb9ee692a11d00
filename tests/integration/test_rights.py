"""Who may move what: every role against every move, kind of event and column, by the role's own login."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from typing import Any

import psycopg
import pytest
from psycopg import Connection, sql

from domain.states import EventKind, StepState, TaskState, is_legal
from testing.databases import Databases
from tests.integration.store_bench import StoreBench

APPLICATION, SUPERVISOR = "app", "supervisor"
HELD = [(s, h) for s in TaskState for h in (False, True) if h or s is not TaskState.PROCESSING]
BEGINNINGS = [(s, h) for s, h in HELD if not h or s in (TaskState.PROCESSING, TaskState.COMPENSATING)]
WORKED = (StepState.RUNNING, StepState.UNDOING, StepState.UNDO_FAILED)
NOT_ALLOWED = (psycopg.errors.InsufficientPrivilege, psycopg.errors.CheckViolation)


@pytest.fixture(scope="module")
def tasks(opened: StoreBench) -> Databases:
    """A task in each state, held and not, whose hold has expired; each with a step in each state."""
    opened.empty()
    for state, held in BEGINNINGS:
        put(opened, name(state, held), state, held=held)
    return opened.databases


def name(state: TaskState, held: bool) -> str:
    """The task that is in that state."""
    return f"{state}-{'held' if held else 'free'}"


def put(store: StoreBench, task_id: str, state: TaskState, *, held: bool, overdue_s: int = 1) -> None:
    """A task past every guard, with one event and a step in each state of its own, none a pivot."""
    store.owner(
        "INSERT INTO task (task_id, definition, version, state, record_digest, submitter, data_class, epoch,"
        " last_event, confirmed, locked_by, run_id, complete_by)"
        " VALUES (%(id)s, 'order', 1, %(state)s, 'digest', 'test', 'internal', 1, 1, true, %(holder)s, %(run)s,"
        " clock_timestamp() - make_interval(secs => %(overdue)s))",
        id=task_id,
        state=state,
        holder=f"order/{task_id}/1" if held else None,
        run="run" if held else None,
        overdue=overdue_s if held else None,
    )
    store.owner(
        "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)"
        " VALUES (%(id)s, 1, 'submitted', %(state)s, 1, 'test', '{}')",
        id=task_id,
        state=state,
    )
    for step in StepState:
        store.owner(
            "INSERT INTO step (task_id, name, position, service, state, budget, budget_left, undo_budget,"
            " undo_budget_left, reserved, complete_by)"
            " VALUES (%(id)s, %(step)s, 0, 'stock', %(step)s, 9, 4, 9, 4, 2, clock_timestamp())",
            id=task_id,
            step=step,
        )


@contextmanager
def role(databases: Databases, who: str) -> Iterator[Connection[Any]]:
    """A transaction by the login of a role; whatever it did is undone."""
    with closing(psycopg.connect(getattr(databases, who))) as connection:
        yield connection
        connection.rollback()


def change(connection: Connection[Any], task_id: str, **columns: Any) -> None:
    """Change a task; `columns`: values."""
    pairs = [sql.SQL("{} = {}").format(sql.Identifier(c), sql.Literal(v)) for c, v in columns.items()]
    connection.execute(
        sql.SQL("UPDATE task SET last_event = 2, {} WHERE task_id = {}").format(sql.SQL(", ").join(pairs), task_id)
    )


def say(
    connection: Connection[Any], task_id: str, kind: EventKind, before: TaskState, after: TaskState, **more: Any
) -> None:
    """Append the second event of a task."""
    values = {"epoch": 1, "actor": "supervisor" if kind is EventKind.EXPIRED else "cli:anna", **more}
    connection.execute(
        "INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)"
        " VALUES (%s, 2, %s, %s, %s, %s, %s, '{}')",
        (task_id, kind, before, after, values["epoch"], values["actor"]),
    )


def move(connection: Connection[Any], before: TaskState, held: bool, after: TaskState, kind: EventKind) -> None:
    """A whole transition, as a statement of the store makes it; checked at once."""
    task_id, columns = name(before, held), {"state": after.value}
    stays_held = held and before is after and kind not in (EventKind.EXPIRED, EventKind.RELEASED)
    claim = not held and kind is EventKind.CLAIMED
    if claim:
        columns |= {"epoch": 2, "locked_by": f"order/{task_id}/2", "complete_by": "2100-01-01T00:00:00Z"}
    elif held and not stays_held:
        columns |= {"locked_by": None, "run_id": None, "complete_by": None}
    change(connection, task_id, **columns)
    say(connection, task_id, kind, before, after, epoch=2 if claim else 1)
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


def is_allowed(who: str, kind: EventKind, before: TaskState, held: bool, after: TaskState) -> bool:
    """An expiry of a held task is the Supervisor's, everything else the application's."""
    if (kind is EventKind.CLAIMED and held) or not is_legal(kind, before, after):
        return False
    if kind is EventKind.EXPIRED:
        return who == SUPERVISOR and held
    return who == APPLICATION


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "H5")
@pytest.mark.parametrize(("before", "held"), BEGINNINGS, ids=str)
@pytest.mark.parametrize("who", [APPLICATION, SUPERVISOR])
def test_each_role_makes_its_own_moves_and_no_others(tasks: Databases, who: str, before: TaskState, held: bool) -> None:
    with role(tasks, who) as connection:
        for after, kind in product(TaskState, EventKind):
            connection.execute("SAVEPOINT here")
            if is_allowed(who, kind, before, held, after):
                move(connection, before, held, after, kind)
            elif kind is not EventKind.CLAIMED or not held:  # a claim of what is held is no claim: guarded by its epoch
                with pytest.raises(NOT_ALLOWED):
                    move(connection, before, held, after, kind)
            connection.execute("ROLLBACK TO here")


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "H5")
@pytest.mark.parametrize("kind", EventKind, ids=str)
@pytest.mark.parametrize("who", [APPLICATION, SUPERVISOR])
def test_no_role_appends_an_event_without_its_transition(tasks: Databases, who: str, kind: EventKind) -> None:
    with role(tasks, who) as connection:
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for before, after in product(TaskState, TaskState):
            connection.execute("SAVEPOINT here")
            with pytest.raises(NOT_ALLOWED):
                say(connection, name(TaskState.PROCESSING, True), kind, before, after)
            connection.execute("ROLLBACK TO here")


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "G4")
@pytest.mark.parametrize("actor", ["cli:anna", "signal:ops", "order/t/1", "supervisor:2", "", "scheduler@here"])
def test_supervisor_speaks_for_itself_only(tasks: Databases, actor: str) -> None:
    held = name(TaskState.PROCESSING, True)
    with role(tasks, SUPERVISOR) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        say(connection, held, EventKind.EXPIRED, TaskState.PROCESSING, TaskState.PENDING, actor=actor)


@pytest.mark.demand("D3", "G4")
@pytest.mark.parametrize("kind", EventKind, ids=str)
def test_application_does_not_speak_for_the_supervisor(tasks: Databases, kind: EventKind) -> None:
    with role(tasks, APPLICATION) as connection, pytest.raises(NOT_ALLOWED):
        say(connection, "t", kind, TaskState.PROCESSING, TaskState.PROCESSING, actor="supervisor")


@pytest.mark.failure(59)
@pytest.mark.demand("G4")
@pytest.mark.parametrize("who", [APPLICATION, SUPERVISOR])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail, at)"
        " VALUES ('t', 1, 'submitted', 'Pending', 0, 'x', '{}', '2020-01-01')",
        "INSERT INTO alert (kind, message, raised_at) VALUES ('missed_sweep', 'x', '2020-01-01')",
        "INSERT INTO alert (id, kind, message) VALUES (7, 'missed_sweep', 'x')",
    ],
)
def test_when_something_was_written_is_said_by_the_database(tasks: Databases, who: str, statement: str) -> None:
    with role(tasks, who) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


# --- what the Supervisor may write of a task ------------------------------------------------------------------


def expire(connection: Connection[Any], task_id: str, state: TaskState, after: TaskState, **columns: Any) -> None:
    """The Supervisor's recovery of a held task."""
    change(connection, task_id, state=after, locked_by=None, run_id=None, complete_by=None, **columns)
    say(connection, task_id, EventKind.EXPIRED, state, after)


@pytest.mark.failure(59, 108)
@pytest.mark.demand("D3", "H5")
@pytest.mark.parametrize(
    ("columns", "allowed"),
    [
        ({"failure_count": 1}, True),
        ({"failure_count": 2}, False),
        ({"failure_count": -1}, False),
        ({"not_before": "2030-01-01"}, True),
        ({"not_before": "infinity"}, False),
        ({"epoch": 2}, False),
        ({"worker": "me"}, False),
        ({"claim_nonce": "mine"}, False),
        ({"confirmed": True}, False),
        ({"record_digest": "another"}, False),
        ({"submitter": "me"}, False),
        ({"reply_to": "me"}, False),
        ({"last_seq": 7}, False),
        ({"created_at": "2020-01-01"}, False),
    ],
    ids=str,
)
def test_supervisor_writes_the_columns_of_recovery_only(
    tasks: Databases, columns: dict[str, Any], allowed: bool
) -> None:
    held = name(TaskState.PROCESSING, True)
    with role(tasks, SUPERVISOR) as connection:
        if allowed:
            expire(connection, held, TaskState.PROCESSING, TaskState.PENDING, **columns)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return
        with pytest.raises(NOT_ALLOWED):
            expire(connection, held, TaskState.PROCESSING, TaskState.PENDING, **columns)


@pytest.mark.failure(108)
@pytest.mark.demand("D3")
@pytest.mark.parametrize(
    "columns",
    [
        {"complete_by": "2100-01-01"},
        {"locked_by": "order/mine/1"},
        {"run_id": "mine"},
        {"run_id": None},
        {"failure_count": 1},
        {"state": "Pending", "locked_by": None, "complete_by": None},
    ],
    ids=str,
)
def test_supervisor_lets_go_and_takes_nothing_itself(tasks: Databases, columns: dict[str, Any]) -> None:
    with role(tasks, SUPERVISOR) as connection, pytest.raises(NOT_ALLOWED):
        change(connection, name(TaskState.PROCESSING, True), **columns)


@pytest.mark.failure(108)
@pytest.mark.demand("D3")
@pytest.mark.parametrize("state", [TaskState.PROCESSING, TaskState.COMPENSATING], ids=str)
def test_supervisor_takes_nothing_from_a_holder_in_time(opened: StoreBench, state: TaskState) -> None:
    task_id = f"{state}-in-time"
    put(opened, task_id, state, held=True, overdue_s=-600)
    after = TaskState.PENDING if state is TaskState.PROCESSING else TaskState.COMPENSATING
    with role(opened.databases, SUPERVISOR) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
        expire(connection, task_id, state, after)
    assert error.value.diag.constraint_name == "supervisor_recovers_what_expired"


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "F12")
def test_supervisor_undoes_nothing_past_its_pivot(opened: StoreBench) -> None:
    put(opened, "t", TaskState.PROCESSING, held=True)
    opened.owner("UPDATE step SET pivot = true WHERE task_id = 't' AND name = 'Completed'")
    with role(opened.databases, SUPERVISOR) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            expire(connection, "t", TaskState.PROCESSING, TaskState.COMPENSATING)
        connection.rollback()
        expire(connection, "t", TaskState.PROCESSING, TaskState.ERROR)
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


@pytest.mark.failure(10)
@pytest.mark.demand("D3", "B2")
@pytest.mark.parametrize("columns", ["claim_nonce", "*"])
def test_supervisor_does_not_learn_by_what_a_run_is_known(tasks: Databases, columns: str) -> None:
    with role(tasks, SUPERVISOR) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(f"SELECT {columns} FROM task")  # noqa: S608 (literals)


# --- what it may write of a step ------------------------------------------------------------------------------


@pytest.mark.failure(108)
@pytest.mark.demand("D3", "E1")
@pytest.mark.parametrize("step", StepState, ids=str)
@pytest.mark.parametrize(
    ("columns", "allowed"),
    [
        ("failure_count = failure_count + 1", True),
        ("failure_count = failure_count + 2", False),
        ("failure_count = failure_count - 1", False),
        ("budget_left = budget_left + reserved, reserved = 0, reservation = NULL", False),
        ("budget_left = budget_left + reserved, budget = budget + reserved", True),
        ("undo_budget_left = undo_budget_left + reserved, undo_budget = undo_budget + reserved", True),
        ("budget_left = budget_left + reserved + 1, budget = budget + reserved + 1", False),
        ("undo_budget_left = undo_budget_left + 1, undo_budget = undo_budget + 1", False),
        (
            "budget = budget + 3, budget_left = budget_left + 3,"
            " undo_budget = undo_budget - 1, undo_budget_left = undo_budget_left - 1",
            False,
        ),
        ("budget_left = budget_left - 1", False),
        ("budget = budget + 1", False),
        ("undo_budget_left = undo_budget_left + 3", False),
        ("reserved = reserved + 1", False),
        ("state = 'Completed'", False),
        ("state = 'Undone'", False),
        ("complete_by = complete_by + interval '1 hour'", False),
        ("result = '{}'", False),
        ("key_generation = 1", False),
        ("outcome_unknown = true", False),
        ("gave_up = true", False),
    ],
)
def test_supervisor_counts_and_grants_on_steps_at_work_only(
    tasks: Databases, step: StepState, columns: str, allowed: bool
) -> None:
    held = name(TaskState.PROCESSING, True)
    statement = f"UPDATE step SET {columns} WHERE task_id = '{held}' AND name = '{step}'"  # noqa: S608 (literals)
    with role(tasks, SUPERVISOR) as connection:
        expire(connection, held, TaskState.PROCESSING, TaskState.PENDING)
        if allowed and step in WORKED:
            connection.execute(statement)
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return
        with pytest.raises(NOT_ALLOWED):
            connection.execute(statement)


@pytest.mark.demand("D3", "E1")
@pytest.mark.parametrize(
    "columns", ["failure_count = 1", "budget_left = budget_left + reserved, budget = budget + reserved"]
)
def test_supervisor_changes_no_step_of_a_task_that_does_not_expire(tasks: Databases, columns: str) -> None:
    other, held = name(TaskState.COMPENSATING, True), name(TaskState.PROCESSING, True)
    with role(tasks, SUPERVISOR) as connection:
        expire(connection, held, TaskState.PROCESSING, TaskState.PENDING)
        connection.execute(
            f"UPDATE step SET {columns} WHERE task_id = '{other}' AND name = 'Running'"  # noqa: S608 (literals)
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as error:
            connection.commit()
    assert error.value.diag.constraint_name == "supervisor_counts_what_expired"


# --- names, and rights of others ------------------------------------------------------------------------------


@pytest.mark.failure(59)
@pytest.mark.demand("C12", "H5")
def test_guards_read_the_real_tables_whatever_the_session_shadows(tasks: Databases) -> None:
    free = name(TaskState.PENDING, False)
    with role(tasks, APPLICATION) as connection:
        connection.execute("CREATE TEMP TABLE event (LIKE public.event)")
        connection.execute("CREATE TEMP TABLE task (LIKE public.task)")
        connection.execute("SET search_path = pg_temp, public")
        connection.execute(
            "INSERT INTO pg_temp.event (task_id, number, kind, state_from, state_to, epoch, actor, detail, at)"
            " VALUES (%s, 2, 'noted', 'Pending', 'Pending', 1, 'x', '{}', now())",
            (free,),
        )
        connection.execute("UPDATE public.task SET last_event = 2 WHERE task_id = %s", (free,))
        with pytest.raises(psycopg.errors.CheckViolation, match="has no event"):
            connection.commit()


@pytest.mark.demand("H5")
@pytest.mark.parametrize(
    "statement", ["UPDATE definition SET policies = '{}'", "UPDATE inbox SET body = '{}'", "UPDATE inbox SET key = 'k'"]
)
def test_application_changes_no_policy_and_no_answer(tasks: Databases, statement: str) -> None:
    with role(tasks, APPLICATION) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


@pytest.mark.failure(108)
@pytest.mark.demand("H5")
def test_unknown_role_with_rights_may_only_supervise(tasks: Databases, opened: StoreBench) -> None:
    opened.owner("CREATE ROLE stranger; GRANT SELECT, INSERT, UPDATE ON task, step, event TO stranger")
    try:
        with psycopg.connect(tasks.owner) as connection:
            connection.execute("SET ROLE stranger")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                move(connection, TaskState.PROCESSED, False, TaskState.COMPENSATING, EventKind.UNDO_REQUESTED)
    finally:
        opened.owner("DROP OWNED BY stranger; DROP ROLE stranger")
