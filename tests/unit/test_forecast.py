"""What `check` says that a definition will do."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from cli.app import run_app
from cli.commands import app
from definitions import registry
from domain.definition import Backoff, Definition, ExtendedWait
from operators.forecast import Forecast, StepForecast, forecast

SWEEP = timedelta(seconds=10)


def definition(name: str) -> Definition:
    found = registry().newest(name)
    assert found is not None
    return found


def of(name: str) -> Forecast:
    return forecast(definition(name), SWEEP)


def step(found: Forecast, name: str) -> StepForecast:
    return next(s for s in found.steps if s.name == name)


def test_undo_order_is_the_reverse_without_what_has_no_undo() -> None:
    assert (of("order").undo_order, of("order").not_undone) == (["ship", "charge", "stock"], ["confirm"])


def test_pivot_is_never_compensated_for_what_is_spent() -> None:
    found = of("provisioning")
    assert (found.pivot, step(found, "name").if_spent, step(found, "machine").if_spent) == ("name", "error", "undo")


def test_step_behind_a_pivot_ends_in_error() -> None:
    order = definition("order")
    first, *others = order.steps
    found = forecast(replace(order, steps=(replace(first, pivot=True, undo=None), *others)), SWEEP)
    assert {(s.if_refused, s.if_spent) for s in found.steps[1:]} == {("error", "error")}


def test_longest_is_attempts_with_detection_back_offs_and_waits() -> None:
    order = replace(
        definition("order"),
        threshold=1,
        backoff=Backoff(timedelta(seconds=4), 2.0),
        extended_wait=ExtendedWait(timedelta(minutes=2)),
    )
    found = step(forecast(order, SWEEP), "stock")
    assert found.most_attempts == 3
    assert found.longest == 3 * (timedelta(seconds=5) + SWEEP) + timedelta(seconds=4 + 120) * 1.25
    back_offs = timedelta(seconds=4 + 8 + 16 + 32 + 64)
    assert found.undo_longest == 6 * (timedelta(seconds=5) + SWEEP) + back_offs * 1.25


def test_forecast_says_where_a_step_runs_and_why() -> None:
    found = of("provisioning")
    assert (step(found, "disk").queue, step(found, "machine").queue) == (None, "cloud")
    assert "no queue is named" in step(found, "disk").why_there
    assert "it answers later: in workers with `--roles agents --agents cloud`" in step(found, "machine").why_there


def test_services_are_told_what_their_agents_count_on() -> None:
    mail, payments = (s.must for s in of("order").services if s.name in ("mail", "payments"))
    assert "undo by the keys of the original, for 30 days" in set(payments) - set(mail)
    assert "refuse a fencing token lower than it has seen" in mail
    (cloud,) = of("provisioning").services
    assert "post its answer to the callback address, again until it is taken" in cloud.must


def test_check_prints_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(app, ["check", "order"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= 24
    assert "undo order  ship, charge, stock" in shown


def test_check_prints_every_definition_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(app, ["check"]) == 0
    shown = capsys.readouterr().out
    assert "stock → charge → ship → confirm" in shown
    assert run_app(app, ["check", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["definition"], f["most_calls"]) for f in found] == [("order", 36), ("provisioning", 36)]


def test_check_of_an_unknown_name_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(app, ["check", "nosuch"]) == 3
    assert "there is no definition 'nosuch' (there are: order, provisioning)" in capsys.readouterr().err
