"""Each command of docker-compose.yml runs here, with the variables that the file gives it and no others, against the
embedded servers: no Docker engine is needed to know that a service has what it needs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime.embedded.ports import free_port
from runtime.settings import Settings
from tests.conftest import Bench
from tests.workers import environment

ROOT = Path(__file__).parent.parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = {name: s for name, s in SERVICES.items() if "build" in s}
READY = {"migrate": None, "cli": None, "simulators": "simulators ready"}


def adapted(service: dict[str, Any], settings: Settings, address: str) -> dict[str, str]:
    """The variables of a service, each with this test's value for it.

    Raises:
        KeyError: The file sets a variable that no setting has.
    """
    here = {**environment(settings), "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": "default"}
    names = service.get("environment", {})
    assert set(names) <= set(here), f"unknown variables {sorted(set(names) - set(here))}"
    # Where containers listen on every interface of their own, a test listens on loopback.
    return {name: here[name] for name in names}


def arguments(service: dict[str, Any], folder: Path) -> list[str]:
    """The command of a service, with the container's folder and port replaced."""
    here = {"/data": str(folder), "8790": str(free_port()), "0.0.0.0": "127.0.0.1"}  # noqa: S104 (replaced by loopback)
    return [here.get(word, word) for word in service["command"]]


@pytest.mark.demand("C7", "D3")
@pytest.mark.parametrize("name", sorted(OURS))
async def test_command_of_the_service_runs_with_the_variables_it_is_given(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    env = adapted(OURS[name], bench.settings, bench.client.service_client.config.target_host)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments(OURS[name], tmp_path),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **env},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = ""
    ready = READY.get(name, "worker ready")
    try:
        async with asyncio.timeout(40):
            while ready is not None and ready not in said:
                line = await process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
                assert line, f"{name} ended with {await process.wait()}:\n{said}"
                said += line.decode()
            if ready is not None:
                process.send_signal(signal.SIGTERM)
            rest = await process.stdout.read()  # type: ignore[union-attr]  # it is a pipe
            assert await process.wait() == 0, said + rest.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
