"""The simulators as a real process: protocol, ledgers that survive, and faults that really happen."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[2]
RESERVATION = {"sku_lines": [{"sku": "BOOK", "quantity": 2}]}
CHARGE = {"amount_minor": 1999, "currency": "EUR", "card_token": "tok_visa"}
SHIPMENT = {
    "address": {"name": "Ada", "line1": "1 Main St", "city": "Bern", "postcode": "3000", "country": "CH"},
    "parcels": 1,
}


class Simulators:
    """A running `python -m simulators` and a client for it."""

    def __init__(self, state_dir: Path, *options: str) -> None:
        command = [sys.executable, "-m", "simulators", "--port", "0", "--state-dir", str(state_dir), *options]
        environment = {name: value for name, value in os.environ.items() if name != "SAS_PARENT_PID"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready.startswith("simulators ready on http://127.0.0.1:"), ready
        self.client = httpx.Client(base_url=ready.split()[-1], timeout=10, trust_env=False)
        assert self.client.get("/health").status_code == 200

    def close(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ends the process and returns its exit status."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def post(
        self,
        path: str,
        key: str,
        body: object,
        token: int = 1,
        *,
        timeout_s: float = 10,
        time_left_ms: int = 5000,
    ) -> httpx.Response:
        """Posts with the protocol's headers."""
        sent = {"Idempotency-Key": key, "X-Fencing-Token": str(token), "X-Time-Left-Ms": str(time_left_ms)}
        return self.client.post(path, json=body, headers=sent, timeout=timeout_s)

    def undo(self, path: str, keys: list[str], token: int = 1) -> httpx.Response:
        """Undoes the keys of one step."""
        task_id, step, _ = keys[0].split(":")
        return self.post(path, f"{task_id}:{step}:undo", {"keys": keys}, token)

    def fault(self, service: str, kind: str, **rule: object) -> None:
        """Puts a fault rule in force."""
        answer = self.client.post(f"/control/{service}/faults", json={"kind": kind, **rule})
        assert answer.status_code == 201, answer.text

    def ledger(self, service: str, task_id: str | None = None) -> Any:
        """Returns a service's ledger."""
        parameters = {} if task_id is None else {"task_id": task_id}
        return self.client.get(f"/control/{service}/ledger", params=parameters).json()

    def summary(self, service: str) -> Any:
        """Returns a service's counts."""
        return self.client.get("/control/summary").json()[service]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    running = Simulators(tmp_path_factory.mktemp("simulators"), "--machine-delay-ms", "100", "--seed", "7")
    yield running
    running.close()


@pytest.fixture
def sim(process: Simulators) -> Simulators:
    assert process.client.post("/control/reset").status_code == 204
    return process


@pytest.fixture
def callbacks() -> Iterator[tuple[str, "queue.Queue[Any]"]]:
    """A URL that answers 503 once and 200 from then on, and the bodies it took with 200."""
    received: queue.Queue[Any] = queue.Queue()
    refusals = iter([503])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = next(refusals, 200)
            if status == 200:
                received.put(body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/answers", received
    server.shutdown()
    thread.join()
    server.server_close()


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


def until(condition: Callable[[], bool]) -> None:
    """Asks again until the condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"


def machine(url: str | None) -> dict[str, object]:
    ids = {"address_id": "address_1", "disk_id": "disk_1"}
    return {"region": "eu", "machine_type": "small", "callback_url": url, **ids}


# --- the protocol ---------------------------------------------------------------------------------------


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
    answers = [sim.undo("/payments/refunds", ["t1:pay:0", "t1:pay:1"], token=2) for _ in range(2)]
    assert [(a.status_code, a.json()) for a in answers] == [(200, {"undone": 1, "nothing_to_undo": 1})] * 2
    money = sim.summary("payments")["money"]
    assert (money["charged_minor"], money["refunded_minor"]) == (1999, 1999)
    assert sim.client.get("/payments/operations/t1:pay:1").json()["state"] == "undone"


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
    answer = sim.post("/payments/refunds", "t1:pay:undo", {"keys": ["t2:pay:0"]})
    assert (answer.status_code, code(answer)) == (400, "invalid_request")
    assert sim.ledger("payments", "t2")["effects"][0]["undone_at"] is None


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


# --- faults ---------------------------------------------------------------------------------------------


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


def test_refused_undo_may_be_asked_again(sim: Simulators) -> None:
    sim.post("/payments/charges", "t1:pay:0", CHARGE)
    sim.fault("payments", "refuse", match={"undo": True, "path": "/refunds"}, times=1)
    assert sim.undo("/payments/refunds", ["t1:pay:0"]).status_code == 422
    assert sim.undo("/payments/refunds", ["t1:pay:0"]).json() == {"undone": 1, "nothing_to_undo": 0}


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


# --- machines -------------------------------------------------------------------------------------------


def test_machine_is_finished_later_and_told_by_callback(
    sim: Simulators, callbacks: tuple[str, "queue.Queue[Any]"]
) -> None:
    url, received = callbacks
    first, again = (sim.post("/cloud/machines", "t1:machine:0", machine(url)) for _ in range(2))
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    told = received.get(timeout=10)
    result = told["result"]
    assert (told["key"], told["status"]) == ("t1:machine:0", "done")
    assert result["machine_id"] == first.json()["machine_id"]
    done = sim.post("/cloud/machines", "t1:machine:0", machine(url))
    assert (done.status_code, done.json()) == (200, {"state": "done", **result})
    assert sim.client.get("/cloud/operations/t1:machine:0").json()["status"] == 200


def test_undone_machine_sends_no_callback(sim: Simulators, callbacks: tuple[str, "queue.Queue[Any]"]) -> None:
    url, received = callbacks
    sim.post("/cloud/machines", "t1:machine:0", machine(url))
    assert sim.undo("/cloud/machines/undo", ["t1:machine:0"]).json()["undone"] == 1
    sim.post("/cloud/machines", "t2:machine:0", machine(url))
    assert received.get(timeout=10)["key"] == "t2:machine:0"
    assert received.empty()


# --- the process ----------------------------------------------------------------------------------------


def test_kill_and_restart_keep_ledger_and_machines(tmp_path: Path, callbacks: tuple[str, "queue.Queue[Any]"]) -> None:
    url, received = callbacks
    before = Simulators(tmp_path, "--machine-delay-ms", "60000")
    charged = before.post("/payments/charges", "t1:pay:0", CHARGE, token=3).json()
    before.post("/cloud/machines", "t1:machine:0", machine(url))
    assert before.close(signal.SIGKILL) == -signal.SIGKILL
    after = Simulators(tmp_path, "--machine-delay-ms", "0")
    try:
        assert received.get(timeout=10)["key"] == "t1:machine:0"
        replayed = after.post("/payments/charges", "t1:pay:0", CHARGE, token=3)
        assert (replayed.json(), replayed.headers["Idempotent-Replayed"]) == (charged, "true")
        assert after.post("/payments/charges", "t1:pay:0", CHARGE, token=2).status_code == 412
    finally:
        assert after.close() == 0


@pytest.mark.demand("H11")
def test_crash_fault_kills_after_the_commit(tmp_path: Path) -> None:
    before = Simulators(tmp_path)
    before.fault("payments", "crash")
    with pytest.raises(httpx.TransportError):
        before.post("/payments/charges", "t1:pay:0", CHARGE)
    assert before.close() == 137
    after = Simulators(tmp_path)
    try:
        assert len(after.ledger("payments", "t1")["effects"]) == 1
    finally:
        assert after.close() == 0


def test_simulators_end_with_the_parent_they_were_given(tmp_path: Path) -> None:
    gone = {**os.environ, "SAS_PARENT_PID": "1" if os.getpid() != 1 else "2"}
    command = [sys.executable, "-m", "simulators", "--port", "0", "--state-dir", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=gone, capture_output=True, timeout=10, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"")
