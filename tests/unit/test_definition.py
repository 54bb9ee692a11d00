"""Task definitions: one that exists may be run; one that may not be run says what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from activities.agents import catalogue, payments, stock
from definitions import registry
from definitions.agent_checks import misfits
from domain.definition import Backoff, Definition, ExtendedWait, Registry, Results, Step, Undo
from domain.faults import DefinitionError
from domain.worst_case import worst_case


class Record(BaseModel):
    """A business record."""


def make(_: Record, __: Results) -> stock.Reserve:
    """A request of the type that `stock.reserve` takes."""
    return stock.Reserve(sku_lines=[])


UNDO = Undo("stock.cancel")


def step(name: str, **more: Any) -> Step:
    """A step that nothing is wrong with, unless `more` says otherwise."""
    terms: dict[str, Any] = {"within": timedelta(seconds=5), "undo": UNDO, **more}
    return Step(name=name, action="stock.reserve", request=make, **terms)


def definition(*steps: Step, **more: Any) -> Definition:
    """A definition of these steps."""
    return Definition(**{"name": "made_up", "version": 1, "record": Record, "steps": steps, **more})


def unfit(found: Definition) -> list[str]:
    """What does not fit between a definition and the samples' Agents."""
    return misfits(found, catalogue())


def refused(*steps: Step, **more: Any) -> str:
    """What is said against a definition of these steps."""
    with pytest.raises(DefinitionError) as error:
        definition(*steps, **more)
    return str(error.value)


@pytest.mark.failure(59)
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.5, -1.0])
def test_back_off_grows_by_a_finite_factor(factor: float) -> None:
    assert "the factor of its back-off must be a number from 1 on" in refused(step("a"), backoff=Backoff(factor=factor))


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.demand("F12", "E2", "E4")
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (step("b", after=("nowhere",)), "step b: after unknown step 'nowhere'"),
        (step("b", calls=10, budget=9), "step b: its allowance of 10 calls exceeds its budget of 9"),
        (
            step("b", undo=Undo("stock.cancel", calls=31, budget=30)),
            "step b: its undo allowance of 31 calls exceeds its budget of 30",
        ),
        (step("b", calls=4), "step b: 3 attempts of 4 calls are 12 calls, over its budget of 9"),
        (
            step("b", undo=Undo("stock.cancel", calls=6, budget=30)),
            "step b: 6 undo attempts of 6 calls are 36 calls, over its undo budget of 30",
        ),
        (
            step("b", undo=Undo("stock.cancel", quarantine=timedelta(minutes=2))),
            "step b: 12 undo attempts of 5 calls are 60 calls, over its undo budget of 30",
        ),
        (
            step("b", budget=30),
            "step b: its undo budget of 30 must be larger than its budget of 30",
        ),
        (step("b", calls=0), "step b: its call allowance must be at least 1"),
        (step("b", undo=Undo("stock.cancel", calls=0)), "step b: its undo's call allowance must be at least 1"),
        (step("b", within=timedelta(0)), "step b: complete-within must be positive, not 0:00:00"),
        (
            step("b", within=timedelta(seconds=5, milliseconds=1)),
            "step b: an inline step may take 0:00:05 at most, not 0:00:05.001000",
        ),
        (step("b", answers_later=True), "step b: a step that answers later can't be inline"),
        (step("b", pivot=True), "step b: a pivot or a step without effect has no undo"),
        (step("b", no_effect=True), "step b: a pivot or a step without effect has no undo"),
        (step("b", undo=None), "step b has an effect but no undo, and is not behind a pivot"),
        (step("B"), "step name 'B' must match"),
        (step("b:c"), "step name 'b:c' must match"),
        (step("b\n"), "must match"),
        (step("a"), "step name 'a' is used twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsafe_step_is_refused_by_name_and_value(broken: Step, said: str) -> None:
    assert said in refused(step("a"), broken)


@pytest.mark.demand("E2")
def test_extended_waits_count_in_the_worst_case() -> None:
    said = refused(step("a"), extended_wait=ExtendedWait(timedelta(hours=1), times=2))
    assert "step a: 5 attempts of 3 calls are 15 calls, over its budget of 9: lower calls, threshold" in said


@pytest.mark.demand("E2", "E4")
def test_worst_case_of_the_shipped_definitions_fits_their_budgets() -> None:
    for found in registry():
        for s in found.steps:
            worst = worst_case(found, s)
            assert worst.calls <= s.budget
            assert s.undo is None or (worst.undo_calls <= s.undo.budget > s.budget)


@pytest.mark.parametrize("name", ["", "Order", "1st", "an order", "a/b", "a" * 64])
def test_definition_name_that_fits_no_id_is_refused(name: str) -> None:
    assert "its name must match" in refused(step("a"), name=name)


def test_definition_without_steps_is_refused() -> None:
    assert "it has no steps" in refused()


@pytest.mark.failure(83)
def test_definition_with_more_steps_than_temporal_bears_is_refused() -> None:
    assert "it has 101 steps; 100 are the most" in refused(*(step(f"s{n}", after=()) for n in range(101)))
    assert len(definition(*(step(f"s{n}", after=()) for n in range(100))).steps) == 100


@pytest.mark.demand("F12")
@pytest.mark.parametrize(
    "steps",
    [
        (step("a", after=("a",)),),
        (step("a", after=("c",)), step("b"), step("c")),
        (step("start"), step("a", after=("b",)), step("b", after=("a",))),
    ],
    ids=["itself", "sequence that ends at its beginning", "behind a good start"],
)
def test_steps_that_wait_for_one_another_in_a_circle_are_refused(steps: tuple[Step, ...]) -> None:
    assert "wait for one another in a circle" in refused(*steps)


def test_every_problem_of_a_definition_is_said_at_once() -> None:
    said = refused(step("a", calls=0), step("b", answers_later=True))
    assert "definition made_up v1: " in said
    assert "step a: " in said
    assert "step b: " in said


# --- what is allowed ------------------------------------------------------------------------------------------


@pytest.mark.demand("F12")
def test_effect_without_undo_is_allowed_anywhere_behind_the_pivot() -> None:
    definition(step("a"), step("pivot", undo=None, pivot=True), step("b", undo=None), step("c", undo=None))


@pytest.mark.demand("F12")
def test_effect_without_undo_beside_the_pivot_is_refused() -> None:
    side = step("side", undo=None, after=("a",))
    said = refused(step("a"), step("pivot", undo=None, pivot=True, after=("a",)), side)
    assert "step side has an effect but no undo" in said


def test_long_step_is_allowed_on_a_queue() -> None:
    definition(step("a", queue="stock", within=timedelta(hours=1), answers_later=True))


def test_five_seconds_are_allowed_inline() -> None:
    definition(step("a", within=timedelta(seconds=5)))


def test_name_twice_in_the_registry_is_refused_by_name_and_version() -> None:
    one, other = definition(step("a")), definition(step("b"))
    for twin in (one, other):
        with pytest.raises(DefinitionError, match=r"registered twice.*made_up.*1"):
            Registry([one, twin])


def test_newest_version_serves_new_tasks_and_the_pinned_one_its_own() -> None:
    one = definition(step("a"))
    ten = replace(one, version=10)
    registry = Registry([ten, one])
    assert registry.newest("made_up") is ten
    assert registry.find("made_up", 1) is one
    assert registry.find("made_up", 2) is None
    assert registry.newest("unknown") is None


# --- what follows what ----------------------------------------------------------------------------------------


@pytest.mark.demand("B4")
def test_in_a_sequence_each_step_is_followed_by_the_next() -> None:
    found = definition(step("a"), step("b"), step("c"))
    assert [found.follower(s) for s in found.steps] == [found.step("b"), found.step("c"), None]
    assert [found.after(s) for s in found.steps] == [(), ("a",), ("b",)]


@pytest.mark.demand("B5")
def test_completion_before_a_fork_begins_no_step() -> None:
    found = definition(step("a"), step("b", after=("a",)), step("c", after=("a",)))
    assert found.follower(found.step("a")) is None


@pytest.mark.demand("B5")
def test_a_join_begins_in_a_write_of_its_own() -> None:
    found = definition(step("a", after=()), step("b", after=()), step("join", after=("a", "b")), step("end"))
    assert found.follower(found.step("a")) is None
    assert found.follower(found.step("b")) is None
    assert found.follower(found.step("join")) is found.step("end")


def test_step_decides_what_follows_its_refusal_else_the_definition() -> None:
    found = definition(step("a"), step("b", on_refused="error"), on_refused="undo")
    assert [found.refused(s) for s in found.steps] == ["undo", "error"]


# --- what the Supervisor reads --------------------------------------------------------------------------------


@pytest.mark.demand("D3", "D7")
def test_policies_are_json_and_name_every_step_with_its_budgets() -> None:
    found = definition(
        step("a", budget=15, undo=Undo("stock.cancel", budget=60, quarantine=timedelta(minutes=2))),
        step("pivot", undo=None, pivot=True, queue="q", within=timedelta(minutes=1), budget=15),
        backoff=Backoff(timedelta(seconds=2), 3.0, timedelta(minutes=1)),
        extended_wait=ExtendedWait(timedelta(hours=1), 2),
        on_spent="error",
    )
    policies = found.policies()
    assert json.loads(json.dumps(policies)) == policies
    assert policies["backoff_s"] == [2.0, 3.0, 60.0]
    assert (policies["extended_wait_s"], policies["extended_waits"]) == (3600.0, 2)
    assert policies["on_spent"] == "error"
    assert policies["steps"]["a"]["undo_budget"] == 60
    assert policies["steps"]["a"]["quarantine_s"] == 120.0
    assert policies["steps"]["pivot"] == {
        "position": 1,
        "action": "stock.reserve",
        "service": "stock",
        "after": ["a"],
        "within_s": 60.0,
        "calls": 3,
        "budget": 15,
        "undo": None,
        "undo_budget": 0,
        "quarantine_s": None,
        "pivot": True,
        "queue": "q",
        "on_refused": "error",
    }


# --- the registry, against the Agents -------------------------------------------------------------------------


@pytest.mark.demand("F12")
def test_action_that_no_agent_has_is_refused_naming_those_there_are() -> None:
    (problem,) = unfit(definition(replace(step("a"), action="stock.steal")))
    assert "definition made_up v1, step a: no Agent has an action 'stock.steal'" in problem
    assert "payments.charge" in problem


@pytest.mark.demand("F12")
def test_undo_action_that_no_agent_has_is_refused() -> None:
    (problem,) = unfit(definition(step("a", undo=Undo("stock.forget"))))
    assert "no Agent has an action 'stock.forget'" in problem


@pytest.mark.demand("F12")
def test_request_of_another_type_than_the_action_takes_is_refused() -> None:
    def charge(_: Record, __: Results) -> payments.Charge:
        return payments.Charge(amount_minor=1, currency="EUR", card_token="x")

    (problem,) = unfit(definition(replace(step("a"), request=charge)))
    assert "step a: stock.reserve takes Reserve" in problem


def test_request_that_does_not_say_its_type_is_refused() -> None:
    (problem,) = unfit(
        definition(step("a", undo=Undo("payments.refund", lambda _: payments.Refund(amount_minor=1, currency="EUR"))))
    )
    assert "step a: payments.refund takes Refund" in problem


def test_request_for_an_action_that_takes_none_is_refused() -> None:
    def refund(_: Record) -> payments.Refund:
        return payments.Refund(amount_minor=1, currency="EUR")

    (problem,) = unfit(definition(step("a", undo=Undo("stock.cancel", refund))))
    assert "step a: stock.cancel takes nothing" in problem


def test_undo_without_the_request_that_its_action_takes_is_refused() -> None:
    (problem,) = unfit(definition(step("a", undo=Undo("payments.refund"))))
    assert "step a: payments.refund takes Refund" in problem


@pytest.mark.demand("C3", "F12")
def test_queued_step_that_may_run_beside_an_inline_one_is_refused() -> None:
    queued = step("b", queue="q", after=("start",))
    text = refused(step("start"), step("a", after=("start",)), queued, step("c", after=("b",)))
    assert "step a is inline and step b has a queue, and both may run at once" in text
    assert "step c" not in text
    definition(step("start"), step("a", after=("start",)), step("b", queue="q", after=("a",)))


def test_graph_with_a_great_many_paths_is_checked_at_once() -> None:
    steps, before = [step("s")], "s"
    for n in range(33):
        left, right, join = f"l{n}", f"r{n}", f"j{n}"
        steps += [step(left, after=(before,)), step(right, after=(before,)), step(join, after=(left, right))]
        before = join
    definition(*steps)


@pytest.mark.demand("C7", "F12")
def test_queued_step_that_is_undone_by_another_service_is_refused() -> None:
    def nothing(_: Record) -> payments.Refund:
        return payments.Refund(amount_minor=0, currency="EUR")

    elsewhere = replace(step("a", undo=Undo("payments.refund", nothing)), queue="stock")
    (problem,) = unfit(definition(elsewhere))
    assert "must be of one service, not ['payments', 'stock']" in problem
    assert unfit(definition(replace(elsewhere, queue=None))) == []


@pytest.mark.failure(26)
@pytest.mark.demand("E2", "F12")
def test_step_that_asks_by_key_needs_two_calls() -> None:
    """With one, the question behind an unknown outcome would take it in every attempt: nothing would be sent again."""
    (problem,) = unfit(definition(step("a", calls=1)))
    assert "step a: service stock is asked by key" in problem
    assert "its allowance must be at least 2 calls, not 1" in problem
    assert unfit(definition(step("a", calls=2))) == []


def test_definition_that_fits_the_agents_has_no_problems() -> None:
    assert unfit(definition(step("a"))) == []


def test_the_shipped_definitions_load() -> None:
    assert {"order", "provisioning"} <= set(registry().names())
    for found in registry():
        assert unfit(found) == []
        assert json.loads(json.dumps(found.policies())) == found.policies()


@pytest.mark.demand("F12")
def test_provisioning_has_its_pivot_last_and_an_order_has_none() -> None:
    order, provisioning = registry().newest("order"), registry().newest("provisioning")
    assert order is not None
    assert provisioning is not None
    assert [s.name for s in order.steps if s.pivot] == []
    assert [s.name for s in provisioning.steps if s.pivot] == [provisioning.steps[-1].name] == ["name"]


class Parcel(BaseModel):
    """A record of many types, and of a model that says nothing about strictness."""

    pieces: int
    weight_kg: float
    price: Decimal
    fragile: bool
    due: date
    sent_at: datetime
    within: timedelta
    speed: Literal["slow", "fast"]
    contents: tuple[str, ...]
    number: UUID
    rest: dict[str, Any]


PARCEL: dict[str, Any] = {
    "pieces": 2,
    "weight_kg": 1,
    "price": "12.50",
    "fragile": True,
    "due": "2026-12-01",
    "sent_at": "2026-11-30T12:00:00Z",
    "within": "PT1H",
    "speed": "fast",
    "contents": ["tea"],
    "number": "7f3c1a52-9a1e-4c3e-8a54-0d5a2d2f7b11",
    "rest": {"a": [1, 2.5, None]},
}


@pytest.mark.failure(24)
def test_record_is_read_strictly_except_for_types_that_json_lacks() -> None:
    checked = replace(definition(step("one")), record=Parcel).checked(PARCEL)
    assert checked == PARCEL | {"weight_kg": 1.0}


@pytest.mark.failure(24)
@pytest.mark.parametrize(
    "wrong",
    [
        *({"pieces": True}, {"pieces": "2"}, {"pieces": 2.0}, {"weight_kg": "1"}, {"weight_kg": False}),
        *({"fragile": 1}, {"fragile": "yes"}, {"speed": 1}, {"contents": ["tea", 1]}, {"due": 20260101}),
        {"number": 7},
    ],
    ids=str,
)
def test_value_of_another_type_is_refused_whatever_the_model_says(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        replace(definition(step("one")), record=Parcel).checked(PARCEL | wrong)
    assert [e["loc"][0] for e in refused.value.errors()] == list(wrong)


@pytest.mark.failure(87)
@pytest.mark.demand("H6")
def test_unknown_field_of_another_release_is_no_changed_definition() -> None:
    ours = definition(step("a"), step("b"))
    released = json.loads(json.dumps(ours.policies()))
    assert ours.agrees_with(released)
    assert ours.agrees_with({k: v for k, v in released.items() if k != "most_attempts"})
    assert ours.agrees_with({**released, "a_later_word": 7})
    for n in range(2):
        del released["steps"]["ab"[n]]["calls"]
        assert ours.agrees_with(released)
    assert not ours.agrees_with({**released, "threshold": 7})
    assert not ours.agrees_with({**released, "backoff_s": [2.0, 1.0, 300.0]})
    assert not ours.agrees_with({**released, "steps": {"a": released["steps"]["a"]}})
    assert not definition(step("a"), step("c")).agrees_with(released)
