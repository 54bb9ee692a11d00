"""The protocol of the simulators: keys, tokens, refusals, undo and tombstones."""

from __future__ import annotations

import pytest

from tests.integration.simulators.process import CHARGE, RESERVATION, SHIPMENT, Simulators, code, machine


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/stock/reservations", RESERVATION, 201, "reservation_id"),
        ("/payments/charges", CHARGE, 201, "charge_id"),
        ("/shipping/shipments", SHIPMENT, 201, "tracking"),
        ("/mail/messages", {"to": "a@b.example", "template": "thanks", "data": {"n": 1}}, 202, "message_id"),
        ("/cloud/addresses", {"region": "eu"}, 201, "ip"),
        ("/cloud/disks", {"region": "eu", "size_gib": 10}, 201, "disk_id"),
        ("/cloud/machines", machine(None), 202, "machine_id"),
        ("/cloud/names", {"name": "free.example", "address_id": "address_1"}, 201, "record_id"),
    ],
)
def test_each_effect_answers_with_its_id(sim: Simulators, path: str, body: object, status: int, field: str) -> None:
    answer = sim.post(path, "t1:step:0", body)
    assert answer.status_code == status
    assert answer.json()[field]


@pytest.mark.parametrize(
    ("path", "body", "status", "expected"),
    [
        ("/stock/reservations", {"sku_lines": [{"sku": "OUT-1", "quantity": 1}]}, 409, "out_of_stock"),
        ("/payments/charges", {**CHARGE, "card_token": "tok_declined"}, 402, "card_declined"),
        (
            "/shipping/shipments",
            {**SHIPMENT, "address": {**SHIPMENT["address"], "country": "XX"}},  # type: ignore[dict-item]
            422,
            "unknown_address",
        ),
        ("/cloud/names", {"name": "taken.example", "address_id": "address_1"}, 409, "name_taken"),
    ],
)
def test_permanent_refusal_is_saved_under_its_key(
    sim: Simulators, path: str, body: object, status: int, expected: str
) -> None:
    first, again = (sim.post(path, "t1:step:0", body) for _ in range(2))
    assert (first.status_code, code(first)) == (again.status_code, code(again)) == (status, expected)
    assert again.headers["Idempotent-Replayed"] == "true"
    service = path.split("/")[1]
    assert sim.client.get(f"/{service}/operations/t1:step:0").json()["state"] == "refused"
    assert sim.ledger(service)["effects"] == []
    assert sim.summary(service)["refusals"] == {expected: 1}


def test_same_key_and_body_replays_the_saved_answer(sim: Simulators) -> None:
    first = sim.post("/payments/charges", "t1:pay:0", CHARGE)
    again = sim.post("/payments/charges", "t1:pay:0", dict(reversed(CHARGE.items())), token=2)
    assert "Idempotent-Replayed" not in first.headers
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(sim.ledger("payments", "t1")["effects"]) == 1
    assert sim.summary("payments")["money"]["charged_minor"] == 1999


def test_same_key_with_another_body_is_refused(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:0", CHARGE)
    other = sim.post("/payments/charges", "t1:pay:0", {**CHARGE, "amount_minor": 1})
    assert (other.status_code, code(other)) == (422, "idempotency_key_reused")


@pytest.mark.failure(5)
def test_stale_token_has_no_effect(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:0", CHARGE, token=5)
    stale = sim.post("/payments/charges", "t1:extra:0", CHARGE, token=4)
    other_task = sim.post("/payments/charges", "t2:pay:0", CHARGE, token=1)
    assert (stale.status_code, code(stale)) == (412, "stale_token")
    assert other_task.status_code == 201
    ledger = sim.ledger("payments", "t1")
    assert len(ledger["effects"]) == 1
    assert [refusal["outcome"] for refusal in ledger["refusals"]] == ["stale_token"]


def test_stale_undo_has_no_effect(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:0", CHARGE, token=5)
    assert sim.undo("/payments/refunds", ["t1:pay:0"], token=4).status_code == 412
    assert sim.ledger("payments", "t1")["effects"][0]["undone_at"] is None


def test_undo_reverses_once_and_may_be_repeated(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:1", CHARGE)
    keys = ["t1:pay:0", "t1:pay:1"]
    answers = [sim.undo("/payments/refunds", keys, token=2, generation=g) for g in (0, 0, 1)]
    assert [(a.status_code, a.json()) for a in answers] == [(200, {"undone": 1, "nothing_to_undo": 1})] * 3
    money = sim.summary("payments")["money"]
    assert (money["charged_minor"], money["refunded_minor"]) == (1999, 1999)
    assert sim.client.get("/payments/operations/t1:pay:1").json()["state"] == "undone"


@pytest.mark.failure(32)
def test_late_original_finds_the_tombstone(sim: Simulators) -> None:
    assert sim.undo("/stock/reservations/undo", ["t1:reserve:0"]).json() == {
        "undone": 0,
        "nothing_to_undo": 1,
    }
    late = sim.post("/stock/reservations", "t1:reserve:0", RESERVATION)
    assert (late.status_code, code(late)) == (410, "undone")
    ledger = sim.ledger("stock", "t1")
    assert ledger["effects"] == []
    assert [tombstone["key"] for tombstone in ledger["tombstones"]] == ["t1:reserve:0"]
    assert [refusal["outcome"] for refusal in ledger["refusals"]] == ["undone"]
    assert sim.client.get("/stock/operations/t1:reserve:0").json()["state"] == "tombstone"


def test_undo_takes_keys_of_its_own_task_only(sim: Simulators) -> None:
    sim.post("/payments/charges", "t2:pay:0", CHARGE)
    answer = sim.post("/payments/refunds", "t1:pay:undo-0", {"keys": ["t2:pay:0"]})
    assert (answer.status_code, code(answer)) == (400, "invalid_request")
    assert sim.ledger("payments", "t2")["effects"][0]["undone_at"] is None


@pytest.mark.failure(17)
def test_call_without_key_token_body_or_time_has_no_effect(sim: Simulators) -> None:
    path = "/payments/charges"
    no_key = sim.client.post(path, json=CHARGE, headers={"X-Fencing-Token": "1"})
    no_token = sim.client.post(path, json=CHARGE, headers={"Idempotency-Key": "t1:pay:0"})
    no_body = sim.post(path, "t1:pay:0", {"amount_minor": -1})
    no_time = sim.post(path, "t1:pay:0", CHARGE, time_left_ms=0)
    assert [(a.status_code, code(a)) for a in (no_key, no_token, no_body, no_time)] == [
        (400, "invalid_header"),
        (400, "invalid_header"),
        (400, "invalid_request"),
        (408, "deadline"),
    ]
    ledger = sim.ledger("payments")
    assert (ledger["effects"], len(ledger["calls"])) == ([], 4)
    assert sim.post(path, "t1:pay:0", CHARGE, time_left_ms=500).status_code == 201


def test_probe_of_a_key_never_seen_is_unknown(sim: Simulators) -> None:
    answer = sim.client.get("/mail/operations/t1:mail:0")
    assert (answer.status_code, code(answer)) == (404, "unknown_key")
