"""Faults that the simulators are told to have: they really happen, and an effect stands or does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import pytest

from tests.integration.simulators.process import CHARGE, RESERVATION, SHIPMENT, Simulators, code


def until(condition: Callable[[], bool]) -> None:
    """Asks again until the condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"


@pytest.mark.demand("H11")
def test_lost_reply_leaves_one_effect_and_a_transport_error(sim: Simulators) -> None:
    sim.fault("payments", "lost_reply", times=1)
    with pytest.raises(httpx.TransportError):
        sim.post("/payments/charges", "t1:pay:0", CHARGE)
    assert sim.client.get("/payments/operations/t1:pay:0").json()["state"] == "done"
    assert sim.post("/payments/charges", "t1:pay:0", CHARGE).status_code == 201
    ledger = sim.ledger("payments", "t1")
    assert len(ledger["effects"]) == 1
    assert [(call["outcome"], call["faults"]) for call in ledger["calls"]] == [
        ("executed", ["lost_reply"]),
        ("replayed", []),
    ]


def test_error_before_the_effect_is_not_saved(sim: Simulators) -> None:
    sim.fault("payments", "error", times=1, status=429, retry_after_s=3)
    failed = sim.post("/payments/charges", "t1:pay:0", CHARGE)
    assert (failed.status_code, failed.headers["Retry-After"]) == (429, "3")
    assert sim.client.get("/payments/operations/t1:pay:0").status_code == 404
    assert sim.post("/payments/charges", "t1:pay:0", CHARGE).status_code == 201


def test_error_after_the_effect_keeps_the_effect(sim: Simulators) -> None:
    sim.fault("payments", "error", times=1, after_effect=True)
    assert sim.post("/payments/charges", "t1:pay:0", CHARGE).status_code == 503
    assert len(sim.ledger("payments", "t1")["effects"]) == 1


@pytest.mark.demand("H11")
def test_outage_cuts_connections_until_it_is_over(sim: Simulators) -> None:
    sim.fault("shipping", "outage", for_s=0.8)
    with pytest.raises(httpx.TransportError):
        sim.post("/shipping/shipments", "t1:ship:0", SHIPMENT)
    with pytest.raises(httpx.TransportError):
        sim.client.get("/shipping/operations/t1:ship:0")
    assert sim.ledger("shipping")["effects"] == []
    assert sim.ledger("shipping")["calls"][0]["outcome"] == "fault:outage"
    until(lambda: not sim.client.get("/control/shipping/faults").json()[0]["alive"])
    assert sim.post("/shipping/shipments", "t1:ship:0", SHIPMENT).status_code == 201


@pytest.mark.demand("H11")
def test_latency_delays_and_slow_start_wears_off(sim: Simulators) -> None:
    sim.fault("stock", "latency", times=1, latency_ms=120)
    sim.fault("stock", "slow_start", latency_ms=150, for_s=0.7)
    begun = time.monotonic()
    sim.post("/stock/reservations", "t1:reserve:0", RESERVATION)
    assert time.monotonic() - begun > 0.17
    until(lambda: not sim.client.get("/control/stock/faults").json()[1]["alive"])
    assert sim.summary("stock")["faults"] == {"latency": 1, "slow_start": 1}


def test_slow_original_meets_its_twin_then_its_tombstone(sim: Simulators) -> None:
    sim.fault("payments", "latency", times=1, latency_ms=800, match={"undo": False})
    with pytest.raises(httpx.ReadTimeout):
        sim.post("/payments/charges", "t1:pay:0", CHARGE, timeout_s=0.1)
    twin = sim.post("/payments/charges", "t1:pay:0", CHARGE)
    assert (twin.status_code, code(twin)) == (409, "in_progress")
    assert sim.undo("/payments/refunds", ["t1:pay:0"]).json()["nothing_to_undo"] == 1
    until(lambda: sim.ledger("payments", "t1")["calls"][0]["outcome"] == "undone")
    assert sim.ledger("payments", "t1")["effects"] == []


def test_effect_happens_even_if_the_caller_gave_up(sim: Simulators) -> None:
    sim.fault("payments", "latency", latency_ms=250)
    with pytest.raises(httpx.ReadTimeout):
        sim.post("/payments/charges", "t1:pay:0", CHARGE, timeout_s=0.1)
    until(lambda: len(sim.ledger("payments", "t1")["effects"]) == 1)


@pytest.mark.failure(11)
@pytest.mark.demand("H11")
def test_duplicate_delivery_has_one_effect(sim: Simulators) -> None:
    sim.fault("payments", "duplicate", times=1)
    assert sim.post("/payments/charges", "t1:pay:0", CHARGE).status_code == 201
    until(lambda: sim.summary("payments")["duplicate_deliveries"] == 1)
    ledger = sim.ledger("payments", "t1")
    assert len(ledger["effects"]) == 1
    assert [(call["duplicate"], call["outcome"]) for call in ledger["calls"]] == [
        (False, "executed"),
        (True, "replayed"),
    ]


def test_injected_refusal_is_permanent_for_its_key(sim: Simulators) -> None:
    sim.fault("stock", "refuse", match={"task_id": "bad-*"})
    assert sim.post("/stock/reservations", "good-1:reserve:0", RESERVATION).status_code == 201
    refused = sim.post("/stock/reservations", "bad-1:reserve:0", RESERVATION)
    assert (refused.status_code, code(refused)) == (422, "refused")
    assert sim.client.delete("/control/stock/faults").status_code == 204
    assert sim.post("/stock/reservations", "bad-1:reserve:0", RESERVATION).status_code == 422


def test_refusal_of_an_undo_is_permanent_for_its_own_key(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:0", CHARGE)
    sim.fault("payments", "refuse", match={"undo": True, "path": "/refunds"}, times=1)
    for _ in range(2):
        assert sim.undo("/payments/refunds", ["t1:pay:0"]).status_code == 422
    again = sim.undo("/payments/refunds", ["t1:pay:0"], generation=1)
    assert again.json() == {"undone": 1, "nothing_to_undo": 0}


def test_undo_that_found_nothing_is_answered_alike_for_ever(sim: Simulators) -> None:
    """At a service without tombstones: only an undo under another key finds the late original."""
    sim.fault("payments", "amnesia")
    nothing, something = {"undone": 0, "nothing_to_undo": 0}, {"undone": 1, "nothing_to_undo": 0}
    assert sim.undo("/payments/refunds", ["t1:pay:0"]).json() == nothing
    sim.post("/payments/charges", "t1:pay:0", CHARGE)
    again = sim.undo("/payments/refunds", ["t1:pay:0"])
    assert (again.json(), again.headers["Idempotent-Replayed"]) == (nothing, "true")
    assert sim.undo("/payments/refunds", ["t1:pay:0"], generation=1).json() == something
    assert sim.ledger("payments", "t1")["effects"][0]["undone_at"] is not None


def test_rate_is_drawn_from_the_seed(sim: Simulators) -> None:
    draws = []
    for _ in range(2):
        sim.client.post("/control/reset")
        sim.fault("mail", "error", rate=0.5)
        message = {"to": "a@b.example", "template": "thanks"}
        draws.append([sim.post("/mail/messages", f"t{n}:mail:0", message).status_code for n in range(12)])
    assert draws[0] == draws[1]
    assert set(draws[0]) == {202, 503}


def test_clearing_ends_faults_of_all_services(sim: Simulators) -> None:
    sim.fault("stock", "outage")
    sim.fault("mail", "outage")
    assert sim.client.delete("/control/faults").status_code == 204
    assert sim.post("/stock/reservations", "t1:reserve:0", RESERVATION).status_code == 201
    assert sim.client.get("/control/mail/faults").json() == []
    assert sim.client.get("/control/nowhere/faults").status_code == 404
