"""Each command of docker-compose.yml runs here, with the variables that it is given and with the packages of production
and no others, against embedded servers: no Docker engine is needed to know that a service has what it needs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.commands import COMMANDS
from devstack.processes.ports import free_port
from runtime.roles import Role
from runtime.settings import Settings
from testing.bench import Bench
from testing.settings import environment
from testing.waiting import PATIENCE_S
from tests.production import production_python

ROOT = Path(__file__).parent.parent.parent
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
OURS = {name: s for name, s in SERVICES.items() if s["image"].startswith("${APP_IMAGE")}
READY = {"migrate": None, "cli": None, "simulators": "simulators ready"}


def adapted(service: dict[str, Any], settings: Settings, address: str) -> dict[str, str]:
    """The variables of a service, each with this test's value for it.

    Raises:
        KeyError: The file sets a variable that no setting has.
    """
    here = {**environment(settings), "TEMPORAL_ADDRESS": address, "TEMPORAL_NAMESPACE": "default", "SAS_BY": "tests"}
    names = service.get("environment", {})
    assert set(names) <= set(here), f"unknown variables {sorted(set(names) - set(here))}"
    # Where containers listen on every interface of their own, a test listens on loopback.
    return {name: here[name] for name in names}


def arguments(service: dict[str, Any], folder: Path) -> list[str]:
    """The command of a service, with the container's folder and port replaced."""
    here = {"/data": str(folder), "8790": str(free_port()), "0.0.0.0": "127.0.0.1"}  # noqa: S104 (replaced by loopback)
    return [here.get(word, word) for word in service["command"]]


async def started(words: list[str], env: dict[str, str], home: Path, *, stderr: int = STDOUT) -> Process:
    """A command, with these variables and the packages of production, and no others."""
    python, packages = production_python(home)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), **packages, **env}
    return await asyncio.create_subprocess_exec(*python, *words, cwd=ROOT, env=env, stdout=PIPE, stderr=stderr)


async def doctor(env: dict[str, str], home: Path) -> tuple[int | None, dict[str, Any]]:
    """Exit code of `doctor`, and what it found of each part."""
    process = await started(["starter.py", "doctor", "-o", "json"], env, home, stderr=PIPE)
    out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    return process.returncode, {c["what"]: c for c in json.loads(out)["checks"]}


@pytest.mark.failure(95, 117)
@pytest.mark.demand("C7", "D3")
@pytest.mark.parametrize("name", sorted(OURS))
async def test_command_of_the_service_runs_with_the_variables_it_is_given(
    bench: Bench, name: str, tmp_path: Path
) -> None:
    env = adapted(OURS[name], bench.settings, bench.client.service_client.config.target_host)
    process = await started(arguments(OURS[name], tmp_path), env, tmp_path)
    said = ""
    ready = READY.get(name, "worker ready")
    try:
        async with asyncio.timeout(PATIENCE_S):
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


@pytest.mark.failure(117)
@pytest.mark.parametrize("name", sorted(COMMANDS))
async def test_starter_command_needs_no_desk_package_or_names_it(name: str, tmp_path: Path) -> None:
    process = await started(["starter.py", name, "--help"], {}, tmp_path, stderr=PIPE)
    out, err = (text.decode() for text in await process.communicate())
    if name in ("up", "demo", "rehearse"):
        assert (process.returncode, out) == (2, "")
        assert f"error: {name} needs the package 'psutil', which is not installed here" in err
    else:
        assert (process.returncode, err) == (0, "")
        assert f"Usage: starter.py {name}" in out


@pytest.mark.failure(95)
@pytest.mark.demand("H5")
async def test_doctor_in_compose_names_what_other_roles_need(bench: Bench, tmp_path: Path) -> None:
    env = adapted(OURS["cli"], bench.settings, bench.client.service_client.config.target_host)
    async with bench.worker(*Role):
        await bench.sweep()
        code, checks = await doctor(env, tmp_path)
        assert [c for c in checks.values() if not c["well"]] == []
        assert code == 0
    needed_by = {c["where"]: c["found"].partition(" the role ")[2] for c in checks.values() if c["elsewhere"]}
    assert needed_by == {
        "SAS_SUPERVISOR_DATABASE_URL": "supervisor",
        "SAS_CALLBACK_SECRET": "callbacks, or agents where a step answers later",
        "SAS_CALLBACK_URL": "agents where a step answers later",
        "SAS_SERVICES__CLOUD": "agents or scheduler",
        "SAS_SERVICES__MAIL": "scheduler",
        "SAS_SERVICES__PAYMENTS": "agents",
        "SAS_SERVICES__SHIPPING": "agents",
        "SAS_SERVICES__STOCK": "scheduler",
    }


@pytest.mark.failure(95)
@pytest.mark.parametrize(
    ("setting", "place", "what"),
    [
        ("SAS_SERVICES__MAIL", "http://127.0.0.1:{}/mail", "service mail"),
        ("SAS_CALLBACK_URL", "http://127.0.0.1:{}", "callbacks"),
        ("SAS_SUPERVISOR_DATABASE_URL", "postgresql://sup:sup@127.0.0.1:{}/state", "supervisor role"),
    ],
)
async def test_doctor_fails_if_a_configured_part_is_away(
    bench: Bench, setting: str, place: str, what: str, tmp_path: Path
) -> None:
    env = adapted(OURS["cli"], bench.settings, bench.client.service_client.config.target_host)
    async with bench.worker(*Role):
        await bench.sweep()
        code, checks = await doctor({**env, setting: place.format(free_port())}, tmp_path)
    assert code == 5
    assert [c["what"] for c in checks.values() if not c["well"]] == [what]
    assert setting in checks[what]["todo"]
