"""One process of simulators for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.simulators.process import Simulators


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    """The process."""
    running = Simulators(tmp_path_factory.mktemp("simulators"), "--machine-delay-ms", "100", "--seed", "7")
    yield running
    running.close()


@pytest.fixture
def sim(process: Simulators) -> Simulators:
    """The simulators, with empty ledgers and no faults."""
    assert process.client.post("/control/reset").status_code == 204
    return process
