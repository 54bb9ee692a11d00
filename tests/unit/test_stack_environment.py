"""Which addresses the processes of the embedded stack are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from devstack.stack.environment import SERVICES, Addresses, worker_environment

ADDRESSES = Addresses(
    state_dir=Path("state"),
    postgres="127.0.0.1:1",
    state_url="postgresql://app@127.0.0.1:1/scheduler",
    supervisor_url="postgresql://supervisor@127.0.0.1:1/scheduler",
    orders_url="postgresql://app@127.0.0.1:1/orders",
    admin_state_url="postgresql://owner@127.0.0.1:1/scheduler",
    admin_orders_url="postgresql://owner@127.0.0.1:1/orders",
    temporal="127.0.0.1:2",
    ui_url="http://127.0.0.1:3",
    simulators_url="http://127.0.0.1:4",
    callback_port=5,
    callback_secret="s" * 32,
)


def test_new_service_reaches_workers_and_none_replaces_a_simulated_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SAS_SERVICES__LOYALTY", "http://127.0.0.1:9/loyalty")
    monkeypatch.setenv("SAS_SERVICES__PAYMENTS", "https://payments.example")
    found = worker_environment(ADDRESSES, {}, supervises=False)
    assert found["SAS_SERVICES__LOYALTY"] == "http://127.0.0.1:9/loyalty"
    assert [found[f"SAS_SERVICES__{s.upper()}"] for s in SERVICES] == [f"http://127.0.0.1:4/{s}" for s in SERVICES]
    assert ADDRESSES.settings().services["loyalty"] == "http://127.0.0.1:9/loyalty"


@pytest.mark.demand("D3", "H5")
def test_worker_gets_no_owners_address_and_only_the_supervisor_its_own() -> None:
    plain, supervising = (worker_environment(ADDRESSES, {}, supervises=s) for s in (False, True))
    assert not {"SAS_ADMIN_DATABASE_URL", "SAS_ADMIN_ORDERS_URL", "SAS_SUPERVISOR_DATABASE_URL"} & set(plain)
    assert not {"SAS_ADMIN_DATABASE_URL", "SAS_ADMIN_ORDERS_URL"} & set(supervising)
    assert supervising["SAS_SUPERVISOR_DATABASE_URL"] == ADDRESSES.supervisor_url
